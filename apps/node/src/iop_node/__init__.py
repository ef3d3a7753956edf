"""The IOP Node: runs beside inference runtimes, dials the Edge and executes the runs it is sent."""
