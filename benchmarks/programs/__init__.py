"""The processes that are measured: the same plugin with kdp and without, and some that do one thing more.

`widgets` and `bare` are one plugin. ``api_pb2.py`` is what protoc makes of
``src/kdp/proto/deviceplugin_v1beta1.proto``, as anybody without kdp would use it.
"""
