// One end of a connection whose records have a checksum (docs/wire_format.md, "Checksums"), for who does not encrypt.
//
// TCP's own sum has 16 bits: of what a broken switch or network card changes behind the cable's own check, one in
// 65,536 passes. Bytes are given to nobody before their record's sum was seen to be right.
#pragma once

#include <cstdint>
#include <memory>

#include "wire/record_session.h"

namespace ddl {

class ChecksumSession final : public RecordSession {
 public:
  static constexpr size_t kHeaderBytes = 8;

  explicit ChecksumSession(int fd);

  Moved seal(const void* from, size_t bytes, size_t* done) override;
  Moved read(void* to, size_t bytes, size_t* done) override;
  bool holds_input() const override { return payload_ > 0 || complete(); }

 private:
  // Room for eight records: one call of the kernel brings several.
  static constexpr size_t kRoom = 8 * (kHeaderBytes + kRecordBytes);

  bool complete() const;
  bool begin_record();
  Moved fill();

  uint64_t records_out_ = 0, records_in_ = 0;
  std::unique_ptr<unsigned char[]> in_;
  size_t begin_ = 0, end_ = 0;  // of what has come and was not given
  size_t payload_ = 0;          // the first so many of these bytes are checked
};

}  // namespace ddl
