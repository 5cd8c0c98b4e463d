// probe.h for Python, through ctypes.
#include "probe.h"

extern "C" {

void* ddl_bench_probe_open(const char* path, int rank) { return new limit::Probe(path, rank); }

double ddl_bench_probe_round_trip(void* probe) { return static_cast<limit::Probe*>(probe)->round_trip(); }
}
