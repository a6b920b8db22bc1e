from kdp_testkit import *
