"""The rows of one upstream file, each read or named with the reason why not.

`rows` (what comes out, and the parameters), `readers` (by format), `archives` (decompression), `records` (bytes cut
into rows), `parsing` (one row), `tables` (parquet and arrow).
"""
