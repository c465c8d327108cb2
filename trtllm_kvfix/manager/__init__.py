"""What stands in for parts of upstream's managers and executor. The fixes that put it there are in overlay/fixes."""
