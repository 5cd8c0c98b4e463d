// Several ranks as threads of one process, so that ThreadSanitizer sees both sides of every
// meeting: between processes it sees each side alone, and finds nothing of what the boards and rings are there to
// order. Run by tests/sanitize/threads.py with plans of the real planners; in_process_memory.cc makes a peer's memory
// our own.
//
//   ranks_as_threads PLANS OPERATIONS SEED PER_HOST CONNECTIONS
//
// PER_HOST ranks each share memory, the others are connected by TCP. Exits with 0, 1 (a wrong result; told on
// stderr), or the sanitizer's status.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>

#include "calls.h"
#include "connections.h"
#include "drawn.h"
#include "memory/arena.h"
#include "plans_file.h"
#include "pool.h"

namespace ddl::test {

namespace {

constexpr size_t kUnderWay = 16;

// A thread that nobody interrupts.
class Patient final : public Caller {
 public:
  explicit Patient(bool sleeps = true) : sleeps_(sleeps) {}
  void let_go() override {}
  bool interrupted() override { return false; }
  bool sleeps() const override { return sleeps_; }

 private:
  const bool sleeps_;
};

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
  Shared(std::vector<Choices> all, int n, unsigned s, int ranks_per_host, int each)
      : choices(std::move(all)),
        size(static_cast<int>(choices.size())),
        operations(n),
        per_host(ranks_per_host),
        each_stream(each),
        seed(s),
        connections(size, per_host, each_stream),
        meeting(size),
        communicators(static_cast<size_t>(size)) {}

  const std::vector<Choices> choices;
  const int size, operations, per_host, each_stream;
  const unsigned seed;
  Connections connections;
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
    connector_.get();
    // Others may find out, and say so, up to the end and beyond it; nothing but the communicator orders them.
    std::atomic<bool> over{false};
    std::future<void> breaker = fail_under_way(&over);
    shared_.meeting.meet();  // a slower rank may still read my board
    communicator().shutdown();
    over.store(true, std::memory_order_relaxed);
    breaker.get();
    calls_->sweep();
    if (!calls_->all_released()) wrong(rank_, {}, "what an operation kept was not let go, or twice");
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
    options.connections = shared_.each_stream;
    options.patience.spin = rank_ % 2 == 0 ? 0 : 20 * kMicrosecond;
    options.patience.yield = 100 * kMicrosecond;  // short, so that ranks also sleep
    shared_.communicators[static_cast<size_t>(rank_)] = std::make_unique<Communicator>(options);
    for (const auto& [key, choices] : shared_.choices[static_cast<size_t>(rank_)]) {
      communicator().install(key.first, key.second, choices);
    }
    shared_.meeting.meet();
    for (int peer = 0; peer < shared_.size; ++peer) {
      if (peer == rank_ || peer / shared_.per_host != rank_ / shared_.per_host) continue;
      auto memory = std::make_shared<PeerMemory>(-1, Arena::process().size(), -1);
      Neighbourhood& theirs = shared_.communicators[static_cast<size_t>(peer)]->neighbourhood();
      communicator().neighbourhood().add(peer, std::move(memory), theirs.own_board_offset());
    }
    shared_.meeting.meet();
    calls_ = std::make_unique<Calls>(rank_, shared_.size, &communicator());
    connector_ = std::async(std::launch::async, bring, shared_.connections.take(rank_), &communicator(),
                            shared_.seed + static_cast<unsigned>(rank_));
  }

  void begin(const Drawn& drawn) {
    UnderWay operation;
    operation.drawn = drawn;
    const size_t blocks = in_blocks(drawn.collective, size_);
    operation.input = pool_.take(drawn.count * blocks, drawn.shared);
    operation.output = pool_.take(drawn.count * size_, drawn.shared);
    for (size_t i = 0; i < drawn.count * blocks; ++i) operation.input->data()[i] = value(drawn.number, rank_, i);
    Buffer *const in = operation.input.get(), *const out = operation.output.get();
    const bool rooted = drawn.collective == Collective::kBroadcast || drawn.collective == Collective::kReduce ||
                        drawn.collective == Collective::kGather || drawn.collective == Collective::kScatter;
    const int root = rooted ? drawn.root : 0;
    if (drawn.collective == Collective::kSend) {
      const int next = (rank_ + 1) % shared_.size, before = (rank_ + shared_.size - 1) % shared_.size;
      operation.submitted.push_back(calls_->start(drawn, Collective::kRecv, before, nullptr, out));
      operation.submitted.push_back(calls_->start(drawn, Collective::kSend, next, in, nullptr));
    } else if (drawn.background) {
      operation.submitted.push_back(calls_->start(drawn, drawn.collective, root, in, out));
    } else {
      Patient patient(drawn.number % 2 == 0 || own_() % 2 == 0);  // a prepared operation is run to its end
      wait(calls_->run(drawn, drawn.collective, root, in, out, &patient), -1);
      check(&operation);
      return;
    }
    if (own_() % 5 == 0) {
      operation.waited = std::async(std::launch::async, [this, submitted = operation.submitted] {
        Patient patient;
        for (const Submitted& each : submitted) communicator().wait(*each, -1, &patient);
      });
    }
    under_way_.push_back(std::move(operation));
  }

  void wait(const Submitted& submitted, Nanoseconds timeout) {
    Patient patient;
    while (!communicator().wait(*submitted, timeout, &patient)) {
    }
    submitted->work.check();
  }

  void finish(size_t which) {
    UnderWay operation = std::move(under_way_[which]);
    under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(which));
    if (operation.waited.valid()) operation.waited.get();
    for (const Submitted& submitted : operation.submitted) wait(submitted, own_() % 2 == 0 ? -1 : kMillisecond);
    calls_->sweep();
    check(&operation);
  }

  void check(UnderWay* operation) {
    for (size_t i = 0; i < operation->drawn.count * size_; ++i) {
      Value want = 0;
      if (!expected(operation->drawn, rank_, shared_.size, i, &want)) continue;
      const Value got = operation->output->data()[i];
      if (got != want) {
        wrong(rank_, operation->drawn,
              "at " + std::to_string(i) + ": " + std::to_string(got) + " instead of " + std::to_string(want));
      }
    }
    pool_.give_back(std::move(operation->input));
    pool_.give_back(std::move(operation->output));
  }

  // Leaves operations under way that the last rank never joins, and breaks the communicator from another thread,
  // which goes on until it is `over`.
  std::future<void> fail_under_way(std::atomic<bool>* over) {
    shared_.meeting.meet();
    if (rank_ != shared_.size - 1) {
      Drawn drawn;
      for (size_t count : kCounts) {
        drawn.count = count;
        drawn.background = true;
        begin(drawn);
      }
    }
    std::future<void> breaker = std::async(std::launch::async, [this, over] {
      do {
        communicator().fail(ErrorKind::kAborted, rank_, "broken on purpose", false);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      } while (rank_ % 2 != 0 && !over->load(std::memory_order_relaxed));
    });
    for (UnderWay& operation : under_way_) {
      if (operation.waited.valid()) operation.waited.get();
      Patient patient;
      communicator().wait(*operation.submitted[0], -1, &patient);
      bool failed = false;
      try {
        operation.submitted[0]->work.check();
      } catch (const Error& error) {
        failed = error.kind() == ErrorKind::kAborted;
      }
      if (!failed) wrong(rank_, operation.drawn, "ended well though a rank never joined it");
    }
    shared_.meeting.meet();  // not before all have let go may anybody's buffers go
    under_way_.clear();
    return breaker;
  }

  const int rank_;
  const size_t size_;
  Shared& shared_;
  std::mt19937 own_;
  std::unique_ptr<Calls> calls_;
  std::future<void> connector_;
  std::vector<UnderWay> under_way_;
  Pool pool_;
};

}  // namespace

int run(const std::string& plans, int operations, unsigned seed, int per_host, int connections) {
  Arena::configure(size_t{4} << 30);
  Shared shared(PlansFile(plans).read(), operations, seed, per_host, connections);
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
  if (argc != 6) {
    std::fprintf(stderr, "usage: %s PLANS OPERATIONS SEED PER_HOST CONNECTIONS\n", argv[0]);
    return 2;
  }
  const auto number = [&](int which) { return std::atoi(argv[which]); };
  return ddl::test::run(argv[1], number(2), static_cast<unsigned>(number(3)), number(4), number(5));
}
