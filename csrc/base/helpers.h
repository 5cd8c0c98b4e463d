// A few threads that take parts of large reductions and copies, where cores are free.
//
// A process has one set of them, which sleeps while there is nothing to do. `share` cuts work into parts, takes parts
// itself as they do, and returns when all are done. Each byte is written by one thread, by the code that would have
// written it without them, so the results have the same bits. Safe from any thread; nothing here throws.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ddl {

class Helpers {
 public:
  static constexpr std::size_t kWorthSharing = std::size_t{256} << 10;  // bytes; less is done before anybody wakes
  static constexpr std::size_t kUnit = 4096;                            // bytes: parts begin at multiples of it
  static constexpr int kMost = 63;

  // Whoever wants `count` of them stays until `leave`. They live as long as one of those does. There are as many as
  // the last one wanted. Where the system gives no more threads, there are fewer.
  static void enter(int count);
  static void leave();
  // How many there are.
  static int count();
  // How many parts they have taken so far, in this process.
  static std::uint64_t parts_taken();

  // Calls work(begin, end), perhaps in several threads at once, for parts that make up [0, bytes).
  template <typename Work>
  static void share(std::size_t bytes, const Work& work) {
    if (bytes < kWorthSharing || count() == 0) {
      work(std::size_t{0}, bytes);
      return;
    }
    run(bytes,
        {[](const void* each, std::size_t begin, std::size_t end) { (*static_cast<const Work*>(each))(begin, end); },
         &work});
  }

 private:
  struct Task {
    void (*call)(const void* work, std::size_t begin, std::size_t end);
    const void* work;
  };
  static void run(std::size_t bytes, const Task& task);
};

}  // namespace ddl
