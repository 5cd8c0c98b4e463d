// CRC-32C (Castagnoli), as iSCSI and file systems use it: it finds every burst of errors up to 32 bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ddl {

// Of these bytes behind others whose sum is `before`; 0: behind none. By the processor's instruction where it has
// one.
uint32_t crc32c(uint32_t before, const void* bytes, size_t count);
// The same without that instruction.
uint32_t crc32c_by_table(uint32_t before, const void* bytes, size_t count);

}  // namespace ddl
