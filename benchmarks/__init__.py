"""What kdp costs, measured beside a bare grpc.aio plugin: ``make bench`` prints the table.

Each figure of docs and README comes from here. One module for each group of rows; `programs` holds the processes that
are measured, `processes` and `kubelets` start and watch them, `table` prints.
"""
