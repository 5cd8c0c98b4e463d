// The limit between two hosts: how fast the wire takes what a collective must carry, with nothing to compute.
//
// One process per host, one TCP connection. For every call each side sends and receives at the same time as many
// bytes as the collective moves between two ranks: all of them for an all-reduce (half to be summed, half of the
// sum), half for reduce-scatter, all-gather and all-to-all, all in one direction for a broadcast. Buffers are plain
// memory, rotated, refilled and timed as in ../worker/loop.py; the barrier is a byte each way.
//
//   pump --rank 0 --address 10.0.0.1 --port 5000 --collective allreduce --latency 65536 --plan ... --output DIR
//        [--connections 1] [--threads 1 (one for both directions) | 2 (one for each)] [--probe FILE]
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "common.h"
#include "probe.h"

namespace limit {

constexpr double kPatience = 60;       // seconds without any progress
constexpr double kSpin = 50e-6;        // seconds of asking again before sleeping in poll
constexpr size_t kAtOnce = 256 << 10;  // bytes per system call: what is read stays in the L2 cache

// A part of a message on its way over one connection, in one direction.
struct Stream {
  int fd;
  char* data;
  size_t left;
  bool out;

  bool move() {  // whether anything moved
    if (left == 0) return false;
    const size_t n = std::min(left, kAtOnce);
    const ssize_t moved = out ? send(fd, data, n, MSG_DONTWAIT | MSG_NOSIGNAL) : recv(fd, data, n, MSG_DONTWAIT);
    if (moved == 0) die("the other side is gone");
    if (moved < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return false;
      die(std::string(out ? "send: " : "recv: ") + std::strerror(errno));
    }
    data += moved;
    left -= static_cast<size_t>(moved);
    return true;
  }
};

// Moves all streams to their ends, asking again for a moment and then sleeping until one of them can move.
void pump(std::vector<Stream>& streams) {
  double idle_since = 0;
  for (;;) {
    bool moved = false, left = false;
    for (Stream& stream : streams) {
      moved = stream.move() || moved;
      left = left || stream.left > 0;
    }
    if (!left) return;
    if (moved) {
      idle_since = 0;
      continue;
    }
    const double now = wall();
    if (idle_since == 0) idle_since = now;
    if (now - idle_since < kSpin) continue;
    std::vector<pollfd> waiting;
    for (const Stream& stream : streams) {
      if (stream.left > 0) waiting.push_back({stream.fd, static_cast<short>(stream.out ? POLLOUT : POLLIN), 0});
    }
    if (poll(waiting.data(), waiting.size(), static_cast<int>(kPatience * 1e3)) == 0) die("nothing moved for 60 s");
  }
}

// A thread that runs what it is given, so that sending need not wait for receiving.
class Helper {
 public:
  ~Helper() {
    start(nullptr);
    thread_.join();
  }
  void start(std::function<void()> work) {
    std::lock_guard<std::mutex> lock(mutex_);
    work_ = std::move(work);
    busy_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !busy_; });
  }

 private:
  void loop() {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return busy_; });
        work = work_;
      }
      if (!work) return;
      work();
      std::lock_guard<std::mutex> lock(mutex_);
      busy_ = false;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  bool busy_ = false;
  std::thread thread_{[this] { loop(); }};
};

class Pump {
 public:
  Pump(std::vector<int> fds, int rank, const Arguments& arguments)
      : fds_(std::move(fds)),
        rank_(rank),
        collective_(arguments.text("collective")),
        latency_(static_cast<size_t>(arguments.number("latency"))),
        two_threads_(arguments.number("threads", "1") == 2),
        probe_(arguments.text("probe", "").c_str(), rank) {}

  Result measure(const Size& size) {
    const size_t sets = static_cast<size_t>(buffer_sets(size.bytes, 2));
    std::vector<std::vector<char>> out(sets, std::vector<char>(size.bytes, 1)), in = out;
    repeat(size.bytes, size.warmup, out, in);
    const double before = probe_.round_trip();
    Result result = repeat(size.bytes, size.calls, out, in);
    result.before = before;
    result.after = probe_.round_trip();
    return result;
  }

 private:
  using Buffers = std::vector<std::vector<char>>;

  Result repeat(size_t bytes, int calls, Buffers& out, Buffers& in) {
    const bool back_to_back = bytes <= latency_;
    const int cycle = collective_ == "broadcast" && back_to_back ? 2 : 1;
    calls = (calls + cycle - 1) / cycle * cycle;
    Result result{bytes, {}, 0, calls};
    meet();
    for (int i = 0; i < calls; i += cycle) {
      if (!back_to_back) {
        std::vector<char>& next = out[static_cast<size_t>(i) % out.size()];
        std::fill(next.begin(), next.end(), static_cast<char>(i));
        meet();
      }
      const double cpu_start = cpu(), start = wall();
      for (int k = i; k < i + cycle; k++) {
        const size_t set = static_cast<size_t>(k) % out.size();
        exchange(out[set], in[set], k % 2);
      }
      result.seconds.push_back((wall() - start) / cycle);
      result.cpu += cpu() - cpu_start;
    }
    return result;
  }

  void exchange(std::vector<char>& out, std::vector<char>& in, int root) {
    const bool all = collective_ == "allreduce" || collective_ == "broadcast";
    const size_t bytes = all ? out.size() : out.size() / 2;
    const bool sends = collective_ != "broadcast" || rank_ == root;
    const bool receives = collective_ != "broadcast" || rank_ != root;
    std::vector<Stream> sending, receiving;
    for (size_t i = 0; i < fds_.size(); i++) {
      const size_t begin = bytes * i / fds_.size(), end = bytes * (i + 1) / fds_.size();
      if (sends) sending.push_back({fds_[i], out.data() + begin, end - begin, true});
      if (receives) receiving.push_back({fds_[i], in.data() + begin, end - begin, false});
    }
    if (two_threads_) {
      helper_.start([&sending] { pump(sending); });
      pump(receiving);
      helper_.wait();
    } else {
      sending.insert(sending.end(), receiving.begin(), receiving.end());
      pump(sending);
    }
  }

  void meet() {
    char mine = 1, theirs = 0;
    std::vector<Stream> both{{fds_[0], &mine, 1, true}, {fds_[0], &theirs, 1, false}};
    pump(both);
  }

  const std::vector<int> fds_;
  const int rank_;
  const std::string collective_;
  const size_t latency_;
  const bool two_threads_;
  Probe probe_;
  Helper helper_;
};

// Some systems default to bbr, which paces with timers and halves such a wire; cubic is always there. A connection
// must start with it: the pacing stays.
int new_socket() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0) die(std::string("socket: ") + std::strerror(errno));
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
  return fd;
}

// Rank 0 listens, rank 1 connects, `count` times.
std::vector<int> connections(int rank, const Arguments& arguments, long count) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(arguments.number("port")));
  if (inet_pton(AF_INET, arguments.text("address").c_str(), &address.sin_addr) != 1) die("bad --address");
  const auto* where = reinterpret_cast<const sockaddr*>(&address);
  const int one = 1, listener = new_socket();
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (rank == 0 && (bind(listener, where, sizeof address) != 0 || listen(listener, 64) != 0)) {
    die(std::string("listen: ") + std::strerror(errno));
  }
  pollfd waiting{listener, POLLIN, 0};
  std::vector<int> fds;
  const double deadline = wall() + kPatience;
  while (static_cast<long>(fds.size()) < count) {
    if (wall() > deadline) die("the other side did not come");
    int fd = -1;
    if (rank == 0) {
      if (poll(&waiting, 1, 1000) == 1) fd = accept(listener, nullptr, nullptr);
    } else {
      fd = new_socket();
      if (connect(fd, where, sizeof address) != 0) {
        close(fd);
        fd = -1;
        usleep(20000);
      }
    }
    if (fd < 0) continue;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fds.push_back(fd);
  }
  close(listener);
  return fds;
}

}  // namespace limit

int main(int argc, char** argv) {
  const limit::Arguments arguments(argc, argv);
  const int rank = static_cast<int>(arguments.number("rank"));
  limit::Pump pump(limit::connections(rank, arguments, arguments.number("connections", "1")), rank, arguments);
  std::vector<limit::Result> results;
  for (const limit::Size& size : arguments.plan()) results.push_back(pump.measure(size));
  limit::write_results(arguments.text("output"), rank, results);
}
