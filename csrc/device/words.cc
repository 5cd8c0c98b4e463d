#include "device/words.h"

#include <new>

#include "device/slabs.h"

namespace ddl {

namespace {

constexpr size_t kPage = size_t{64} << 10;
constexpr size_t kLine = 64;  // a word has a cache line of its own: a lane looks at it again and again

}  // namespace

Words& Words::process() {
  static auto* const words = new Words;  // never destroyed, as the slabs
  return *words;
}

Words::Word Words::take(const Driver& driver) {
  const Lock lock(mutex_);
  if (free_.empty()) add_page(driver);
  const Word word = free_.back();
  free_.pop_back();
  return word;
}

DevicePointer Words::trial(const Driver& driver) {
  const Lock lock(mutex_);
  if (!has_page_) add_page(driver);
  return trial_;
}

void Words::give_back(Word word, uint32_t steps) {
  word.base += steps;
  const Lock lock(mutex_);
  free_.push_back(word);
}

// A page stays with the slabs for good: a GPU that has failed may write to it at any time.
void Words::add_page(const Driver& driver) {
  const Slabs::Part page = Slabs::process().allocate(driver, kPage);
  DevicePointer address = 0;
  try {
    if (page.registered && driver.has_words()) address = driver.address_of(page.memory);
  } catch (const DriverError& error) {
    if (error.fatal()) throw;  // otherwise it is as with an older driver
  }
  if (!has_page_) trial_ = address;  // its first line is not handed out
  for (size_t at = has_page_ ? 0 : kLine; at < kPage; at += kLine) {
    auto* const value = new (page.memory + at) std::atomic<uint32_t>(0);
    free_.push_back({value, address == 0 ? 0 : address + at, 0});
  }
  has_page_ = true;
}

}  // namespace ddl
