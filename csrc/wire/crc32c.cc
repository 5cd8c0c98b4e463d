#include "wire/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include "base/processor_x86.h"
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace ddl {

namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected: the upper bit is the coefficient of x^0

using Table = std::array<std::array<uint32_t, 256>, 8>;

// [k][b]: what byte b becomes with k zero bytes behind it.
Table make_table() {
  Table table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit) sum = (sum & 1) != 0 ? (sum >> 1) ^ kPolynomial : sum >> 1;
    table[0][byte] = sum;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t sum = table[k - 1][byte];
      table[k][byte] = (sum >> 8) ^ table[0][sum & 0xff];
    }
  }
  return table;
}

uint64_t word_at(const unsigned char* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

// In assembly, as compilers disagree on how to allow the instruction in single functions.
#if defined(__x86_64__)
#define DDL_HAS_CRC

bool has_instruction() { return ask_processor().sse42; }
inline uint64_t add_word(uint64_t sum, uint64_t word) {
  __asm__("crc32q %1, %0" : "+r"(sum) : "rm"(word));
  return sum;
}
inline uint64_t add_byte(uint64_t sum, unsigned char byte) {
  __asm__("crc32b %1, %0" : "+r"(sum) : "rm"(byte));
  return sum;
}

#elif defined(__aarch64__)
#define DDL_HAS_CRC

bool has_instruction() { return (::getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
inline uint64_t add_word(uint64_t sum, uint64_t word) {
  __asm__(".arch_extension crc\n\tcrc32cx %w0, %w1, %x2" : "=r"(sum) : "r"(sum), "r"(word));
  return sum;
}
inline uint64_t add_byte(uint64_t sum, unsigned char byte) {
  __asm__(".arch_extension crc\n\tcrc32cb %w0, %w1, %w2" : "=r"(sum) : "r"(sum), "r"(uint32_t{byte}));
  return sum;
}

#endif

#if defined(DDL_HAS_CRC)

// The product of two polynomials modulo the polynomial.
uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (; a != 0; a <<= 1) {
    if ((a & 0x80000000) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

// x to the power of 8 * bytes: a factor that moves a sum before so many bytes.
uint32_t shift_by(size_t bytes) {
  uint32_t power = 0x80000000, square = 0x00800000;  // x^0 and x^8
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1) != 0) power = multiply(power, square);
    square = multiply(square, square);
  }
  return power;
}

// Three sums at once: the instruction takes three cycles, and one can begin in each.
uint32_t by_instruction(uint32_t sum, const unsigned char* at, size_t count) {
  static thread_local size_t known = 0;  // of the last call: records are mostly of one size
  static thread_local uint32_t shift = 0;
  const size_t third = count / 24 * 8;
  uint64_t first = sum;
  if (third >= 256) {
    if (third != known) {
      known = third;
      shift = shift_by(third);
    }
    uint64_t second = 0, last = 0;
    for (size_t i = 0; i < third; i += 8) {
      first = add_word(first, word_at(at + i));
      second = add_word(second, word_at(at + third + i));
      last = add_word(last, word_at(at + 2 * third + i));
    }
    first = multiply(shift, static_cast<uint32_t>(first)) ^ second;
    first = multiply(shift, static_cast<uint32_t>(first)) ^ last;
    at += 3 * third;
    count -= 3 * third;
  }
  for (; count >= 8; at += 8, count -= 8) first = add_word(first, word_at(at));
  for (; count > 0; ++at, --count) first = add_byte(first, *at);
  return static_cast<uint32_t>(first);
}

#endif

uint32_t by_table(uint32_t sum, const unsigned char* at, size_t count) {
  static const Table table = make_table();
  for (; count >= 8; at += 8, count -= 8) {
    const uint64_t word = word_at(at) ^ sum;
    sum = 0;
    for (size_t k = 0; k < 8; ++k) sum ^= table[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; count > 0; ++at, --count) sum = (sum >> 8) ^ table[0][(sum ^ *at) & 0xff];
  return sum;
}

}  // namespace

uint32_t crc32c_by_table(uint32_t before, const void* bytes, size_t count) {
  return ~by_table(~before, static_cast<const unsigned char*>(bytes), count);
}

uint32_t crc32c(uint32_t before, const void* bytes, size_t count) {
#if defined(DDL_HAS_CRC)
  static const bool has = has_instruction();
  if (has) return ~by_instruction(~before, static_cast<const unsigned char*>(bytes), count);
#endif
  return crc32c_by_table(before, bytes, count);
}

}  // namespace ddl
