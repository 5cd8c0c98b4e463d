"""The ``ddl`` command: tools around the library. They may use all of the library; the library does not use them."""
