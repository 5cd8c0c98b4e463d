// Words in host memory by which one side tells the other its progress, without a driver call.
//
// A stream writes a word behind its copies; a lane looks at it. Where the driver cannot do that, the GPU's thread
// writes it instead. A word only grows, even from one use to the next (it may wrap), so a value left over from an
// earlier use means nothing. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/mutex.h"
#include "device/driver.h"

namespace ddl {

class Words {
 public:
  struct Word {
    std::atomic<uint32_t>* value = nullptr;
    DevicePointer address = 0;  // as GPUs know it; 0: they cannot write it
    uint32_t base = 0;          // what it is before the first step of this use, or less

    // Whether it has come to `steps` steps of this use.
    bool reached(uint32_t steps) const {
      return static_cast<int32_t>(value->load(std::memory_order_acquire) - (base + steps)) >= 0;
    }
  };

  static Words& process();
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;

  // Needs a current context. Throws as Slabs::allocate, and DriverError.
  Word take(const Driver& driver);
  // A word that nobody takes, to try whether streams can write words. 0: they cannot.
  DevicePointer trial(const Driver& driver);
  // When nobody writes or reads it any more, also no stream later; `steps`: how far it may have come.
  void give_back(Word word, uint32_t steps);

 private:
  Words() = default;
  void add_page(const Driver& driver) DDL_REQUIRES(mutex_);

  Mutex mutex_;
  std::vector<Word> free_ DDL_GUARDED_BY(mutex_);
  bool has_page_ DDL_GUARDED_BY(mutex_) = false;
  DevicePointer trial_ DDL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ddl
