// How the ranks of a communicator meet: each has a file in a folder that is named by the communicator's id, and maps
// those of the others. Only its owner writes a mailbox.
//
// An operation passes through four counters. `launched`: its header can be read. `started`: its stream has come to
// it, and what the rank brings lies in a file of its own. `computed`: its result is
// there. `ended`: it is, or there will be none. Each is stored with release behind what it tells of, and loaded with
// acquire.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace fake_nccl {

constexpr uint64_t kHeaders = 4096;  // so many operations can be under way

struct Header {
  uint64_t count;
  int32_t kind, type, op;
  // What this rank launched before on the same device with another communicator: its id, and its number there.
  uint64_t other_communicator, other_number;
};

struct Mailbox {
  std::atomic<uint64_t> launched, started, computed, ended;
  std::atomic<uint32_t> aborted, left;
  int32_t size, version, device, pid;
  uint64_t host;
  Header headers[kHeaders];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes share them");

// Puts a mailbox into the folder, as a whole. Null: a rank of that number is there already (errno EEXIST), or the
// system says no.
Mailbox* create_mailbox(const std::string& folder, int rank, const Mailbox& content);
// Null: it is not there yet.
Mailbox* open_mailbox(const std::string& folder, int rank);

std::string payload_file(const std::string& folder, int rank, uint64_t number);

// What a rank brought to an operation, mapped for reading.
class Payload {
 public:
  Payload(const std::string& file, size_t bytes);
  ~Payload();
  Payload(const Payload&) = delete;
  Payload& operator=(const Payload&) = delete;

  const char* data() const { return data_; }  // null: it is not there

 private:
  const size_t bytes_;
  const char* data_ = nullptr;
};

bool write_payload(const std::string& file, const char* data, size_t bytes);

}  // namespace fake_nccl
