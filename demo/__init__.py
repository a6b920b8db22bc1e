"""``make demo``: kdp's main job, done on the devices of this machine; see `demo.story`."""
