// Binds what Python adds to the record of its process, and the record's layout for the test of its reader.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <map>
#include <string>

#include "engine/record.h"
#include "engine/recorder.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace ddl {

namespace {

#define DDL_PLACE(type, member) {#type "." #member, offsetof(type, member)}

std::map<std::string, size_t> layout() {
  return {
      {"Entry", sizeof(Entry)},
      {"Record", sizeof(Record)},
      {"Activity", sizeof(Activity)},
      {"Traffic", sizeof(Traffic)},
      {"kRecords", kRecords},
      {"kPlanNames", kPlanNames},
      {"kPlanNameBytes", kPlanNameBytes},
      {"kRootBytes", kRootBytes},
      {"kRecordVersion", kRecordVersion},
      DDL_PLACE(RecordRoot, identity),
      DDL_PLACE(RecordRoot, records),
      DDL_PLACE(RecordRoot, steps),
      {"bytes of RecordRoot.step_ends", sizeof(RecordRoot::step_ends)},
      DDL_PLACE(Record, lanes),
      DDL_PLACE(Record, rank),
      DDL_PLACE(Record, communicator),
      DDL_PLACE(Record, ranks_offset),
      DDL_PLACE(Record, collectives),
      DDL_PLACE(Record, failure),
      DDL_PLACE(Record, plan_names),
      DDL_PLACE(Entry, packed),
      DDL_PLACE(Entry, label),
  };
}

}  // namespace

void bind_recorder(py::module_& m) {
  m.def("record_identity", &record_identity, py::arg("json"), "Say who this process is, for readers of its record.");
  m.def("note_step", &note_step, "Note that a training step of this process has ended now.");
  m.def("record_layout", &layout, "Where the fields of csrc/engine/record.h lie.");
}

}  // namespace ddl
