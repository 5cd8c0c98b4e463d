#include "engine/recorder.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "base/process.h"
#include "engine/operation.h"
#include "memory/arena.h"

namespace ddl {

namespace {

constexpr size_t kPage = 4096;     // what every operation touches is in one
constexpr size_t kKeptFailed = 2;  // records of communicators that have failed and gone
constexpr size_t kKeptWhole = 1;   // and of those of all ranks that have gone without
constexpr auto kRelaxed = std::memory_order_relaxed;

template <size_t kBytes>
void set_text(RecordedText<kBytes>* recorded, const std::string& text) {
  const size_t bytes = std::min(text.size(), kBytes);
  recorded->bytes.store(0, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(recorded->text, text.data(), bytes);
  recorded->bytes.store(static_cast<uint32_t>(bytes), std::memory_order_release);
}

// The root, and who is listed there.
class Book {
 public:
  // Never destroyed, as the arena.
  static Book& process() {
    static Book* book = new Book;
    return *book;
  }

  void list(Record* record) {
    const Lock lock(mutex_);
    const uint64_t offset = Arena::process().offset(record);
    most_entries_ = std::max(most_entries_, record->collectives);
    for (auto& slot : root_->records) {
      if (slot.load(kRelaxed) != 0) continue;
      slot.store(offset, std::memory_order_release);
      return;
    }
    count(&root_->unlisted, uint32_t{1});
  }

  void retire(Record* record) {
    const Lock lock(mutex_);
    const bool failed = record->failure.bytes.load(kRelaxed) != 0;
    if (!failed && record->collectives < most_entries_) {  // communicators of all ranks have more entries than others
      forget(record);
      return;
    }
    std::deque<Record*>* const gone = failed ? &failed_ : &of_all_ranks_;
    gone->push_back(record);
    if (gone->size() <= (failed ? kKeptFailed : kKeptWhole)) return;
    forget(gone->front());
    gone->pop_front();
  }

  void identify(const std::string& json) {
    if (!owned()) return;
    const Lock lock(mutex_);
    set_text(&root_->identity, json);
  }

  void note_step() {
    if (!owned()) return;
    const uint64_t step = root_->steps.fetch_add(1, kRelaxed);
    root_->step_ends[step % kStepEnds].store(now_ns(), kRelaxed);
  }

 private:
  void forget(Record* record) DDL_REQUIRES(mutex_) {
    const uint64_t offset = Arena::process().offset(record);
    for (auto& slot : root_->records) {
      if (slot.load(kRelaxed) == offset) slot.store(0, kRelaxed);
    }
    Arena::process().free(record);
  }

  Book() : root_(static_cast<RecordRoot*>(Arena::process().root())) {
    timespec wall{};
    ::clock_gettime(CLOCK_REALTIME, &wall);
    root_->monotonic = now_ns();
    root_->wall = wall.tv_sec * kSecond + wall.tv_nsec;
    root_->version = kRecordVersion;
    root_->process = static_cast<uint32_t>(process_id());
    std::atomic_thread_fence(std::memory_order_release);
    std::memcpy(root_->magic, "ddl-rec", sizeof root_->magic);
  }

  bool owned() const { return root_->process == static_cast<uint32_t>(process_id()); }

  RecordRoot* const root_;
  Mutex mutex_;
  std::deque<Record*> failed_ DDL_GUARDED_BY(mutex_);
  std::deque<Record*> of_all_ranks_ DDL_GUARDED_BY(mutex_);
  uint32_t most_entries_ DDL_GUARDED_BY(mutex_) = 0;
};

static_assert(sizeof(RecordRoot) <= kArenaRootBytes);

}  // namespace

Recorder::Recorder(int rank, int size, uint32_t collectives, uint32_t messages) {
  for (uint32_t entries : {collectives, messages}) {
    if (entries == 0 || (entries & (entries - 1)) != 0) {
      throw Error(ErrorKind::kInternalError,
                  std::to_string(entries) + " entries of a recorder; it takes powers of 2");
    }
  }
  const size_t ranks = static_cast<size_t>(size);
  const size_t ranks_at = sizeof(Record);
  const size_t traffic_at = round_up(ranks_at + ranks * sizeof(uint32_t), alignof(Record));
  const size_t collectives_at = round_up(traffic_at + kLanes * ranks * sizeof(Traffic), alignof(Entry));
  const size_t messages_at = collectives_at + collectives * sizeof(Entry);
  const size_t bytes = messages_at + messages * sizeof(Entry);
  Arena& arena = Arena::process();
  char* const base = static_cast<char*>(arena.allocate(bytes, kPage));
  std::memset(base, 0, bytes);
  record_ = reinterpret_cast<Record*>(base);
  ranks_ = reinterpret_cast<uint32_t*>(base + ranks_at);
  traffic_ = reinterpret_cast<Traffic*>(base + traffic_at);
  collectives_ = reinterpret_cast<Entry*>(base + collectives_at);
  messages_ = reinterpret_cast<Entry*>(base + messages_at);
  record_->rank = static_cast<uint32_t>(rank);
  record_->size = static_cast<uint32_t>(size);
  record_->ranks_offset = arena.offset(ranks_);
  record_->traffic_offset = arena.offset(traffic_);
  record_->collectives_offset = arena.offset(collectives_);
  record_->messages_offset = arena.offset(messages_);
  collectives_mask_ = collectives - 1;
  messages_mask_ = messages - 1;
  record_->collectives = collectives;
  record_->messages = messages;
  for (uint32_t r = 0; r < record_->size; ++r) ranks_[r] = r;
  Book::process().list(record_);
}

Recorder::~Recorder() { Book::process().retire(record_); }

void Recorder::introduce(uint64_t communicator, const std::vector<uint32_t>& ranks) {
  std::copy_n(ranks.begin(), std::min<size_t>(ranks.size(), record_->size), ranks_);
  record_->communicator.store(communicator, std::memory_order_release);
}

uint8_t Recorder::name_plan(const std::string& name) {
  const Lock lock(naming_);
  const uint32_t plans = record_->plans.load(kRelaxed);
  const std::string text = name.substr(0, kPlanNameBytes - 1);
  for (uint32_t plan = 0; plan < plans; ++plan) {
    if (text == record_->plan_names[plan]) return static_cast<uint8_t>(plan + 1);
  }
  if (plans == kPlanNames) return 0;
  std::memcpy(record_->plan_names[plans], text.c_str(), text.size() + 1);
  record_->plans.store(plans + 1, std::memory_order_release);
  return static_cast<uint8_t>(plans + 1);
}

void Recorder::note_failure(const std::string& text) {
  if (record_->closed.load(kRelaxed) == 0) set_text(&record_->failure, text);  // what was under way at the end fails
}

void Recorder::note_close() { record_->closed.store(now_ns(), kRelaxed); }

void Recorder::number(Operation* operation) {
  const bool collective = operation->lane != LaneId::kPointToPoint;
  std::atomic<uint64_t>* const last = collective ? &record_->submitted : &record_->submitted_messages;
  Entry* const entries = collective ? collectives_ : messages_;
  const uint64_t mask = collective ? collectives_mask_ : messages_mask_;
  operation->recorded = last->load(kRelaxed) + 1;
  operation->entry = &entries[operation->recorded & mask];
  operation->entry_written = false;
  last->store(operation->recorded, kRelaxed);
  __builtin_prefetch(&entries[(operation->recorded + 1) & mask], 1);  // what the next operation writes to
}

void Recorder::write(Operation* operation) {
  operation->entry_written = true;
#ifdef DDL_UNRECORDED
  return;
#endif
  const Descriptor& d = operation->descriptor;
  Entry* const entry = operation->entry;
  entry->number.store(0, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  entry->signature.store(d.signature(), kRelaxed);
  entry->count.store(d.count, kRelaxed);
  entry->submitted.store(0, kRelaxed);
  entry->begun.store(0, kRelaxed);
  entry->ended.store(0, kRelaxed);
  entry->pieces_ended.store(0, kRelaxed);
  entry->awaited.store(0, kRelaxed);
  const size_t label = std::min(operation->label.size(), kLabelBytes);
  entry->packed.store(pack(static_cast<uint32_t>(operation->pieces), label, operation->lane, operation->plan_name,
                           Progress::kSubmitted),
                      kRelaxed);
  if (label != 0) std::memcpy(entry->label, operation->label.data() + operation->label.size() - label, label);
  entry->number.store(operation->recorded, std::memory_order_release);
}

bool Recorder::recall(uint64_t sequence, Descriptor* descriptor, std::string* label) const {
  const Entry& entry = collectives_[sequence & (record_->collectives - 1)];
  if (sequence == 0 || entry.number.load(std::memory_order_acquire) != sequence) return false;
  *descriptor = descriptor_from(entry.signature.load(kRelaxed), entry.count.load(kRelaxed), sequence, 0);
  label->assign(entry.label, label_bytes_of(entry.packed.load(kRelaxed)));
  return true;
}

std::pair<uint64_t, uint64_t> Recorder::sent() const {
  std::pair<uint64_t, uint64_t> total{0, 0};
  for (size_t i = 0; i < kLanes * size_t{record_->size}; ++i) {
    total.first += traffic_[i].messages.load(kRelaxed);
    total.second += traffic_[i].bytes.load(kRelaxed);
  }
  return total;
}

void record_identity(const std::string& json) { Book::process().identify(json); }

void note_step() { Book::process().note_step(); }

}  // namespace ddl
