// Faults on purpose, one per sanitizer: the runner runs them first, in a child of a child as the tests' ranks are,
// and refuses to go on unless each is reported. A sanitizer that was not loaded, or whose reports get lost, finds
// nothing.

#include <climits>
#include <thread>

namespace {

volatile int counter = 0;

}  // namespace

extern "C" int ddl_canary_thread(int) {
  std::thread other([] { counter = counter + 1; });
  counter = counter + 1;
  other.join();
  return counter;
}

extern "C" int ddl_canary_address(int at) {
  char* volatile block = new char[8];  // volatile, or the compiler does without the block
  block[at] = 1;
  const int value = block[at];
  delete[] block;
  return value;
}

extern "C" int ddl_canary_undefined(int value) { return INT_MAX + value; }
