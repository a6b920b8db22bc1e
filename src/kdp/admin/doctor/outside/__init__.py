"""What an administrator's laptop can tell of a node: questions that only the API server is asked.

`facts` has what the server said, or why it did not. `gathering` asks it. `node`, `pods`, `resources`, and `dra` have
the questions, and `catalogue` all of them in their order. All requests are GET, and no file of the node is looked at.
"""
