"""The commands that people run: one file for each, and the steps that several of them share.

`kdp.command.app` loads a file when its command is called. `looking` makes the vendor's class look at the hardware,
`reaching` speaks to the API server, `leftovers` finds the files of plugins that are gone.
"""
