#include "memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "driver.h"
#include "streams.h"

namespace fake_torch {

namespace {

constexpr size_t kRound = 512;  // bytes, as torch rounds
constexpr size_t kPage = 4096, kSlab = size_t{1} << 20, kHead = 64;

size_t rounded(size_t bytes, size_t unit) { return std::max(unit, (bytes + unit - 1) / unit * unit); }

char* registered_pages(size_t bytes) {
  void* const pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(pages != MAP_FAILED, "there is no memory for the fake device's copies");
  FAKE_CALL(cuMemHostRegister_v2, pages, bytes, 3);
  return static_cast<char*>(pages);
}

// What an allocation of either kind is. Its events tell when streams that it does not belong to have used it.
struct Block {
  void* pointer;
  size_t bytes;
  int device;
  c10::StreamId stream;
  bool pinned;
  uint64_t epoch;
  std::vector<c10::Stream> used_on;
  std::vector<void*> events;
};

using Key = std::tuple<bool, int, c10::StreamId, size_t>;  // pinned, device, stream, bytes

struct Memory {
  std::mutex mutex;
  std::map<Key, std::vector<Block*>> free;  // the last one was freed last
  std::map<std::tuple<int, c10::StreamId, size_t>, std::vector<Staging::Piece*>> pieces;
  std::vector<std::pair<char*, size_t>> slabs;
  size_t slab_used = kSlab;
};

Memory& memory() {
  static Memory* const all = new Memory;
  return *all;
}

// Whether what used the block has ended. This thread knows of it then.
bool unused(Block* block) {
  while (!block->events.empty()) {
    void* const event = block->events.back();
    if (!answered(driver().cuEventQuery(event), "cuEventQuery")) return false;
    FAKE_CALL(cuEventDestroy_v2, event);
    block->events.pop_back();
  }
  return true;
}

Block* block_of(bool pinned, int device, c10::StreamId stream, size_t wanted) {
  const size_t bytes = rounded(wanted, pinned ? kPage : kRound);
  const Pushed pushed(device);
  {
    const std::lock_guard<std::mutex> lock(memory().mutex);
    auto& blocks = memory().free[{pinned, device, stream, bytes}];
    for (auto place = blocks.rbegin(); place != blocks.rend(); ++place) {
      if (!unused(*place)) continue;
      Block* const block = *place;
      blocks.erase(std::next(place).base());
      driver().ddl_ledger_acquire(block);
      return block;
    }
  }
  void* pointer = nullptr;
  if (pinned) {
    pointer = registered_pages(bytes);
  } else {
    uint64_t address = 0;
    FAKE_CALL(cuMemAlloc_v2, &address, bytes);
    pointer = reinterpret_cast<void*>(address);
  }
  return new Block{pointer, bytes, device, stream, pinned, epoch(), {}, {}};
}

void give_back(void* context) {
  auto* const block = static_cast<Block*>(context);
  if (block == nullptr) return;
  if (block->epoch != epoch()) {
    delete block;
    return;
  }
  try {
    const Pushed pushed(block->device);
    for (const c10::Stream& stream : block->used_on) {
      void* event = nullptr;
      FAKE_CALL(cuEventCreate, &event, 2);
      block->events.push_back(event);
      FAKE_CALL(cuEventRecord, event, handle_of(stream));
    }
  } catch (const std::exception&) {
    return;  // the driver has failed, or goes with the process: nobody gets the block again
  }
  block->used_on.clear();
  driver().ddl_ledger_release(block);  // who gets it next knows of all that this thread knows, as by the lock
  const std::lock_guard<std::mutex> lock(memory().mutex);
  memory().free[{block->pinned, block->device, block->stream, block->bytes}].push_back(block);
}

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int index = current_device();
    const c10::Device device(kFake, static_cast<c10::DeviceIndex>(index));
    if (bytes == 0) return {nullptr, nullptr, &give_back, device};
    Block* const block = block_of(false, index, current_stream(index).id(), bytes);
    return {block->pointer, block, &give_back, device};
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "the fake device clones no memory without a tensor");
  }
};

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &give_back, c10::Device(c10::DeviceType::CPU)};
    Block* const block = block_of(true, current_device(), 0, bytes);
    return {block->pointer, block, &give_back, c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

c10::Allocator* device_allocator() {
  static auto* const allocator = new DeviceAllocator;
  return allocator;
}

c10::Allocator* pinned_allocator() {
  static auto* const allocator = new PinnedAllocator;
  return allocator;
}

void record_use(const c10::DataPtr& data, const c10::Stream& stream) {
  if (data.get_deleter() != &give_back || data.get_context() == nullptr) return;
  auto* const block = static_cast<Block*>(data.get_context());
  const std::lock_guard<std::mutex> lock(memory().mutex);
  if (!block->pinned && block->stream == stream.id() && block->device == stream.device_index()) return;
  auto& streams = block->used_on;
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
}

bool is_pinned(const void* pointer) {
  int attribute = 2;  // the type of memory: 1 is the host's, registered
  unsigned type = 0;
  void* values = &type;
  const Pushed pushed(current_device());
  const int code = driver().cuPointerGetAttributes(1, &attribute, &values, reinterpret_cast<uint64_t>(pointer));
  return code == 0 && type == 1;
}

struct Staging::Piece {
  uint32_t* word;
  char* data;
  size_t bytes;
  uint32_t marked;
  uint64_t epoch;

  void* event = nullptr;  // instead of the word, with an older driver: the host learns by asking

  bool reached() {
    if (event != nullptr) {
      if (!answered(driver().cuEventQuery(event), "cuEventQuery")) return false;
      FAKE_CALL(cuEventDestroy_v2, event);
      event = nullptr;
      *word = marked;
    }
    return __atomic_load_n(word, __ATOMIC_ACQUIRE) == marked;
  }
};

namespace {

Staging::Piece* new_piece(size_t bytes) {
  Memory& all = memory();
  const size_t whole = kHead + bytes;
  char* begin = nullptr;
  if (whole > kSlab) {
    const size_t size = rounded(whole, kPage);
    begin = registered_pages(size);
    all.slabs.emplace_back(begin, size);
  } else {
    if (all.slab_used + whole > kSlab || all.slabs.empty()) {
      all.slabs.emplace(all.slabs.begin(), registered_pages(kSlab), kSlab);
      all.slab_used = 0;
    }
    begin = all.slabs.front().first + all.slab_used;
    all.slab_used += whole;
  }
  return new Staging::Piece{reinterpret_cast<uint32_t*>(begin), begin + kHead, bytes, 0, epoch()};
}

}  // namespace

Staging::Staging(const c10::Stream& stream, size_t bytes) : stream_(stream), piece_(nullptr) {
  size_t size = kHead;
  while (size < bytes) size *= 2;
  const Pushed pushed(stream.device_index());
  const std::lock_guard<std::mutex> lock(memory().mutex);
  auto& pieces = memory().pieces[{stream.device_index(), stream.id(), size}];
  const auto place = std::find_if(pieces.begin(), pieces.end(), [](Piece* piece) { return piece->reached(); });
  if (place != pieces.end()) {
    piece_ = *place;
    pieces.erase(place);
  } else {
    piece_ = new_piece(size);
  }
}

Staging::~Staging() {
  const std::lock_guard<std::mutex> lock(memory().mutex);
  if (piece_->epoch != epoch()) {
    delete piece_;
    return;
  }
  memory().pieces[{stream_.device_index(), stream_.id(), piece_->bytes}].push_back(piece_);
}

char* Staging::data() const { return piece_->data; }

void Staging::mark() {
  ++piece_->marked;
  const auto write = driver().cuStreamWriteValue32_v2;
  const int code =
      write == nullptr ? 801 : write(handle_of(stream_), reinterpret_cast<uint64_t>(piece_->word), piece_->marked, 0);
  if (code == 801) {
    if (piece_->event == nullptr) FAKE_CALL(cuEventCreate, &piece_->event, 2);
    FAKE_CALL(cuEventRecord, piece_->event, handle_of(stream_));
  } else {
    check(code, "cuStreamWriteValue32_v2");
  }
}

void Staging::wait() const {
  wait_until([this] { return piece_->reached(); });
}

void forget_memory() {
  Memory& all = memory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (auto& entry : all.free) {
    for (const Block* block : entry.second) delete block;
  }
  for (auto& entry : all.pieces) {
    for (const Staging::Piece* piece : entry.second) delete piece;
  }
  for (const auto& [begin, bytes] : all.slabs) ::munmap(begin, bytes);
  all.free.clear();
  all.pieces.clear();
  all.slabs.clear();
  all.slab_used = kSlab;
}

}  // namespace fake_torch
