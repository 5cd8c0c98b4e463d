// One end of a connection whose bytes go in records: encrypted ones (tls/session.h), or ones with a checksum.
//
// What was sealed waits here until the kernel has taken it. Nothing here blocks.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ddl {

class RecordSession {
 public:
  static constexpr size_t kRecordBytes = 16 << 10;  // of data; longer writes are cut

  enum class Moved {
    kSome,
    kNone,   // it would have to wait
    kEnded,  // nothing more will ever: see `reason`
  };

  // On `fd`, a connected socket that outlives this.
  explicit RecordSession(int fd) : fd_(fd) {}
  RecordSession(const RecordSession&) = delete;
  RecordSession& operator=(const RecordSession&) = delete;
  virtual ~RecordSession() = default;

  // Makes a record of so many bytes, but a record at most, and keeps it until `send` has sent it. kNone never comes.
  virtual Moved seal(const void* from, size_t bytes, size_t* done) = 0;
  // Bytes that wait to be sent.
  size_t sealed() const { return out_.size() - sent_; }
  // Sends what was sealed. kSome: all of it has gone.
  Moved send();
  virtual Moved read(void* to, size_t bytes, size_t* done) = 0;
  // Whether bytes have come that `read` has not given, and of which the socket knows nothing any more.
  virtual bool holds_input() const = 0;
  const std::string& reason() const { return reason_; }
  // Whether it has ended as connections of processes do that end.
  bool closed() const { return closed_; }
  // The errno by which the kernel has ended it; 0: it has not.
  int error() const { return error_; }

 protected:
  // It has ended. The first reason tells.
  Moved end(const std::string& reason);
  Moved end_by(int error);
  Moved end_by_closing();

  const int fd_;
  std::vector<char> out_;  // records, of which so many bytes were sent
  size_t sent_ = 0;

 private:
  bool closed_ = false;
  int error_ = 0;
  std::string reason_;
};

}  // namespace ddl
