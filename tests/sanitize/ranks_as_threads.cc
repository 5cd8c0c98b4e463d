// Several ranks as threads of one process, over shared memory, so that ThreadSanitizer sees both sides of every
// meeting: between processes it sees each side alone, and finds nothing of what the boards and rings are there to
// order. Run by tests/sanitize/threads.py with plans of the real planners; in_process_memory.cc makes a peer's memory
// our own.
//
//   ranks_as_threads PLANS OPERATIONS SEED     exits with 0, 1 (a wrong result; told on stderr), or the sanitizer's
//   status

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>

#include "drawn.h"
#include "memory/arena.h"
#include "plans_file.h"
#include "pool.h"

namespace ddl::test {

namespace {

constexpr size_t kUnderWay = 6;

// A thread that nobody interrupts.
class Patient final : public Caller {
 public:
  void let_go() override {}
  bool interrupted() override { return false; }
};

using Submitted = std::shared_ptr<Operation>;

// All ranks meet here outside of what is tested: to exchange boards, and before anything is torn down.
class Meeting {
 public:
  explicit Meeting(int size) : size_(size) {}
  void meet() {
    std::unique_lock<std::mutex> lock(mutex_);
    const int round = came_++ / size_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return came_ >= (round + 1) * size_; });
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int came_ = 0;
};

struct Shared {
  Shared(std::vector<Choices> all, int n, unsigned s)
      : choices(std::move(all)),
        size(static_cast<int>(choices.size())),
        operations(n),
        seed(s),
        meeting(size),
        communicators(static_cast<size_t>(size)) {}

  const std::vector<Choices> choices;
  const int size, operations;
  const unsigned seed;
  Meeting meeting;
  std::vector<std::unique_ptr<Communicator>> communicators;
};

[[noreturn]] void wrong(int rank, const Drawn& drawn, const std::string& what) {
  std::fprintf(stderr, "rank %d, operation %d, %s of %zu values, root %d: %s\n", rank, drawn.number,
               name(drawn.collective), drawn.count, drawn.root, what.c_str());
  std::_Exit(1);
}

// One rank: submits what is drawn, on one thread, while another waits for some of it.
class Rank {
 public:
  Rank(int rank, Shared* shared)
      : rank_(rank),
        size_(static_cast<size_t>(shared->size)),
        shared_(*shared),
        own_(shared->seed + 1000u * (rank + 1)) {}

  void run() {
    set_up();
    std::mt19937 common(shared_.seed);
    for (int number = 0; number < shared_.operations; ++number) {
      const Drawn drawn = draw(number, shared_.size, &common);
      while (under_way_.size() >= kUnderWay || (!under_way_.empty() && own_() % 3 == 0))
        finish(own_() % under_way_.size());
      if (own_() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own_() % 600));
      begin(drawn);
    }
    while (!under_way_.empty()) finish(0);
    fail_under_way();
    shared_.meeting.meet();  // a slower rank may still read my board
    communicator().shutdown();
    shared_.meeting.meet();
  }

 private:
  struct UnderWay {
    Drawn drawn;
    std::vector<Submitted> submitted;  // two for an exchange
    std::unique_ptr<Buffer> input, output;
    std::future<void> waited;  // where another thread waits
  };

  Communicator& communicator() { return *shared_.communicators[static_cast<size_t>(rank_)]; }

  void set_up() {
    CommunicatorOptions options;
    options.rank = rank_;
    options.size = shared_.size;
    options.timeout = 120 * kSecond;
    options.patience.spin = rank_ % 2 == 0 ? 0 : 20 * kMicrosecond;
    options.patience.yield = 100 * kMicrosecond;  // short, so that ranks also sleep
    shared_.communicators[static_cast<size_t>(rank_)] = std::make_unique<Communicator>(options);
    for (const auto& [key, choices] : shared_.choices[static_cast<size_t>(rank_)]) {
      communicator().install(key.first, key.second, choices);
    }
    shared_.meeting.meet();
    for (int peer = 0; peer < shared_.size; ++peer) {
      if (peer == rank_) continue;
      auto memory = std::make_shared<PeerMemory>(-1, Arena::process().size(), -1);
      Neighbourhood& theirs = shared_.communicators[static_cast<size_t>(peer)]->neighbourhood();
      communicator().neighbourhood().add(peer, std::move(memory), theirs.my_offset());
    }
    shared_.meeting.meet();
  }

  Submitted operation(const Drawn& drawn, Collective collective, int root, Buffer* input, Buffer* output) {
    auto operation = std::make_shared<Operation>();
    operation->descriptor.collective = collective;
    operation->descriptor.dtype = DType::kInt64;
    operation->descriptor.root = root;
    const bool at_root = rank_ == root;
    const bool gathers = collective == Collective::kAllgather || collective == Collective::kGather;
    if (collective != Collective::kBarrier) {
      operation->descriptor.count = operation->count = drawn.count;
      operation->bytes = drawn.count * sizeof(Value) * (gathers || collective == Collective::kAlltoall ? size_ : 1);
      operation->part_lengths = {drawn.count};
    }
    const bool reads = !(collective == Collective::kBroadcast && !at_root) && collective != Collective::kRecv;
    const bool rooted = collective == Collective::kReduce || collective == Collective::kGather;
    if (reads && input != nullptr) operation->input = input->bytes();
    if (output != nullptr && (!rooted || at_root)) operation->output = output->bytes();
    communicator().prepare(operation.get());
    return operation;
  }

  void begin(const Drawn& drawn) {
    UnderWay one;
    one.drawn = drawn;
    const size_t blocks = drawn.collective == Collective::kAlltoall ? size_ : 1;
    one.input = pool_.take(drawn.count * blocks, drawn.shared);
    one.output = pool_.take(drawn.count * size_, drawn.shared);
    for (size_t i = 0; i < drawn.count * blocks; ++i) one.input->data()[i] = value(drawn.number, rank_, i);
    if (drawn.collective == Collective::kSend) {
      const int next = (rank_ + 1) % shared_.size, before = (rank_ + shared_.size - 1) % shared_.size;
      one.submitted.push_back(operation(drawn, Collective::kRecv, before, nullptr, one.output.get()));
      one.submitted.push_back(operation(drawn, Collective::kSend, next, one.input.get(), nullptr));
    } else {
      const bool rooted = drawn.collective == Collective::kBroadcast || drawn.collective == Collective::kReduce ||
                          drawn.collective == Collective::kGather;
      one.submitted.push_back(
          operation(drawn, drawn.collective, rooted ? drawn.root : 0, one.input.get(), one.output.get()));
    }
    if (drawn.background || one.submitted.size() > 1) {
      for (const Submitted& submitted : one.submitted) communicator().submit(submitted);
      if (own_() % 5 == 0) {
        one.waited = std::async(std::launch::async, [this, submitted = one.submitted] {
          Patient patient;
          for (const Submitted& each : submitted) communicator().wait(*each, -1, &patient);
        });
      }
      under_way_.push_back(std::move(one));
    } else {
      Patient patient;
      communicator().run(one.submitted[0], &patient);
      one.submitted[0]->work.check();
      check(&one);
    }
  }

  void wait(const Submitted& submitted, Nanoseconds timeout) {
    Patient patient;
    while (!communicator().wait(*submitted, timeout, &patient)) {
    }
    submitted->work.check();
  }

  void finish(size_t which) {
    UnderWay one = std::move(under_way_[which]);
    under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(which));
    if (one.waited.valid()) one.waited.get();
    for (const Submitted& submitted : one.submitted) wait(submitted, own_() % 2 == 0 ? -1 : kMillisecond);
    check(&one);
  }

  void check(UnderWay* one) {
    for (size_t i = 0; i < one->drawn.count * size_; ++i) {
      Value want = 0;
      if (!expected(one->drawn, rank_, shared_.size, i, &want)) continue;
      const Value got = one->output->data()[i];
      if (got != want) {
        wrong(rank_, one->drawn,
              "at " + std::to_string(i) + ": " + std::to_string(got) + " instead of " + std::to_string(want));
      }
    }
    pool_.give_back(std::move(one->input));
    pool_.give_back(std::move(one->output));
  }

  // Leaves operations under way that the last rank never joins, and breaks the communicator from another thread.
  void fail_under_way() {
    shared_.meeting.meet();
    if (rank_ == shared_.size - 1) {
      shared_.meeting.meet();
      return;
    }
    Drawn drawn;
    for (size_t count : kCounts) {
      drawn.count = count;
      drawn.background = true;
      begin(drawn);
    }
    std::thread breaker([this] { communicator().fail(ErrorKind::kAborted, rank_, "broken on purpose", false); });
    for (UnderWay& one : under_way_) {
      if (one.waited.valid()) one.waited.get();
      Patient patient;
      communicator().wait(*one.submitted[0], -1, &patient);
      bool failed = false;
      try {
        one.submitted[0]->work.check();
      } catch (const Error& error) {
        failed = error.kind() == ErrorKind::kAborted;
      }
      if (!failed) wrong(rank_, one.drawn, "ended well though a rank never joined it");
    }
    breaker.join();
    shared_.meeting.meet();  // not before all have let go may anybody's buffers go
    under_way_.clear();
  }

  const int rank_;
  const size_t size_;
  Shared& shared_;
  std::mt19937 own_;
  std::vector<UnderWay> under_way_;
  Pool pool_;
};

}  // namespace

int run(const std::string& plans, int operations, unsigned seed) {
  Arena::configure(size_t{4} << 30);
  Shared shared(PlansFile(plans).read(), operations, seed);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < shared.size; ++rank) {
    threads.emplace_back([rank, &shared] {
      try {
        Rank(rank, &shared).run();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        std::_Exit(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%d operations on %d ranks\n", operations, shared.size);
  return 0;
}

}  // namespace ddl::test

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s PLANS OPERATIONS SEED\n", argv[0]);
    return 2;
  }
  return ddl::test::run(argv[1], std::atoi(argv[2]), static_cast<unsigned>(std::atoi(argv[3])));
}
