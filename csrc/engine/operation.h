// One submitted collective: what is to be done to which memory, and how far it has got.
//
// Made by the submitting thread, then owned by its lane. Large operations run as several *pieces*: each piece runs
// the whole plan on a part of the buffer, and some are in flight at once, so that all dimensions work at the same
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/descriptor.h"
#include "engine/plan.h"
#include "engine/work.h"

namespace ddl {

struct Operation {
  Descriptor descriptor;  // what the user asked for
  Descriptor wire;        // what the other side must have asked for (differs for send and receive)
  std::string label;      // the user's name for it, e.g. "bucket.4"; may be empty
  std::shared_ptr<const Plan> plan;

  const char* input = nullptr;
  char* output = nullptr;
  uint64_t divisor = 1;

  // Lengths in elements: of the whole buffer if the plan splits it, else of each part (one entry: all alike).
  uint64_t count = 0;
  std::vector<uint64_t> part_lengths;

  uint64_t piece_elements = 0;  // of the buffer if split, else of each part
  uint64_t pieces = 1;
  uint64_t issued = 0;
  uint64_t finished = 0;

  Nanoseconds timeout = 0;
  Nanoseconds started = 0;        // when its first piece was issued
  Nanoseconds next_question = 0;  // when to ask the others, if it is still not done
  bool asked_finally = false;

  std::shared_ptr<Work> work;
  std::shared_ptr<void> keep_alive;  // what owns the memory

  uint64_t part_length(uint32_t part) const {
    return part_lengths.size() == 1 ? part_lengths[0] : part_lengths[part];
  }
  // `allreduce #417 "bucket.4" (16777216 x float32, sum)`
  std::string text() const;
};

}  // namespace ddl
