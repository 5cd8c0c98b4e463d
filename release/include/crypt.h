// Empty. Python.h of 3.9 and 3.10 includes <crypt.h>, which the C library of wheels does not have, and uses nothing of it.
