#include "wire/checksum_session.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "wire/crc32c.h"
#include "wire/little_endian.h"

namespace ddl {

namespace {

constexpr const char* kWrong =
    "what came is not what was sent, as a checksum tells: is a switch, cable or network card broken? (Or do not all "
    "ranks have the same DDL_CHECKSUM?)";

// Of a record: its number and its length count, too, so none can be lost, come twice or be cut unseen.
uint32_t sum_of(uint64_t number, const void* bytes, size_t count) {
  std::array<unsigned char, 12> counted;
  put(counted.data(), number, 8);
  put(counted.data() + 8, count, 4);
  return crc32c(crc32c(0, counted.data(), counted.size()), bytes, count);
}

}  // namespace

ChecksumSession::ChecksumSession(int fd) : RecordSession(fd), in_(new unsigned char[kRoom]) {}

RecordSession::Moved ChecksumSession::seal(const void* from, size_t bytes, size_t* done) {
  *done = std::min(bytes, kRecordBytes);
  std::array<unsigned char, kHeaderBytes> header;
  put(header.data(), *done, 4);
  const size_t begin = out_.size();
  out_.insert(out_.end(), header.begin(), header.end());
  out_.insert(out_.end(), static_cast<const char*>(from), static_cast<const char*>(from) + *done);
  // Of the copy: it is what is sent, and it is in the cache.
  const uint32_t sum = sum_of(records_out_++, out_.data() + begin + kHeaderBytes, *done);
  put(reinterpret_cast<unsigned char*>(out_.data()) + begin + 4, sum, 4);
  return Moved::kSome;
}

// Whether a record lies there as a whole, or its header makes no sense.
bool ChecksumSession::complete() const {
  if (payload_ > 0 || end_ - begin_ < kHeaderBytes) return false;
  const uint64_t length = get(in_.get() + begin_, 4);
  return length > kRecordBytes || end_ - begin_ >= kHeaderBytes + length;
}

// Passes the header of a complete record. False if the record is not what was sent.
bool ChecksumSession::begin_record() {
  const size_t length = get(in_.get() + begin_, 4);
  const uint64_t sum = get(in_.get() + begin_ + 4, 4);
  if (length == 0 || length > kRecordBytes) return false;
  begin_ += kHeaderBytes;
  payload_ = length;
  return sum == sum_of(records_in_++, in_.get() + begin_, length);
}

// Takes what has come from the kernel.
RecordSession::Moved ChecksumSession::fill() {
  if (begin_ > 0) {
    std::memmove(in_.get(), in_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const ssize_t moved = ::recv(fd_, in_.get() + end_, kRoom - end_, MSG_DONTWAIT);
  if (moved == 0) return end_by_closing();
  if (moved < 0) return would_block() ? Moved::kNone : end_by(errno);
  end_ += static_cast<size_t>(moved);
  return Moved::kSome;
}

RecordSession::Moved ChecksumSession::read(void* to, size_t bytes, size_t* done) {
  *done = 0;
  if (!reason().empty()) return Moved::kEnded;
  while (payload_ == 0) {
    if (complete()) {
      if (!begin_record()) return end(kWrong);
    } else {
      const Moved moved = fill();
      if (moved != Moved::kSome) return moved;
    }
  }
  *done = std::min(bytes, payload_);
  std::memcpy(to, in_.get() + begin_, *done);
  begin_ += *done;
  payload_ -= *done;
  return Moved::kSome;
}

}  // namespace ddl
