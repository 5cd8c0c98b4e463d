// Included before all of TensorFlow's op. libstdc++ was configured for Debian 11, whose C library waits by any clock
// (pthread_cond_clockwait, glibc 2.30). Wheels are for glibc 2.28, so it must do as before: by the system's clock.
#include <bits/c++config.h>
#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT
