from .documents import parse_json as parse_json
from .reading import read_text as read_text
