// The limit between two hosts: how fast the wire takes what a collective must carry, with nothing to compute.
//
// One process per host, one TCP connection. For every call each side sends and receives at the same time as many
// bytes as the collective moves between two ranks: all of them for an all-reduce (half to be summed, half of the
// sum), half for reduce-scatter, all-gather and all-to-all, all in one direction for a broadcast. Buffers are plain
// memory, rotated, refilled and timed as in ddl/tools/bench/loop.py; the barrier is a byte each way.
//
//   pump --rank 0 --address 10.0.0.1 --port 5000 --collective allreduce --latency 65536 --calls ... --output DIR
//        [--probe FILE]
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common.h"
#include "probe.h"

namespace limit {

constexpr double kPatience = 60;       // seconds without any progress
constexpr double kSpin = 50e-6;        // seconds of asking again before sleeping in poll
constexpr size_t kAtOnce = 512 << 10;  // bytes per system call: what is read stays in the L2 cache
// A sender is at most this far ahead of what it has received: more would fall out of the caches before it is
// read, and take twice as long.
constexpr size_t kAhead = 512 << 10;

// A part of a message on its way over one connection, in one direction.
struct Stream {
  int fd;
  char* data;  // what arrives is dropped, so that the limit is the wire's and not that of the receiver's memory
  size_t remaining;
  bool out;
  const size_t* opposite = nullptr;  // what is left to come the other way

  size_t may_move() const {
    const size_t n = std::min(remaining, kAtOnce);
    return opposite == nullptr ? n : std::min(n, remaining + kAhead - std::min(remaining + kAhead, *opposite));
  }

  bool move() {  // whether anything moved
    const size_t n = may_move();
    if (n == 0) return false;
    static std::vector<char> dropped(kAtOnce);
    const ssize_t moved =
        out ? send(fd, data, n, MSG_DONTWAIT | MSG_NOSIGNAL) : recv(fd, dropped.data(), n, MSG_DONTWAIT);
    if (moved == 0) die("the other side is gone");
    if (moved < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return false;
      die(std::string(out ? "send: " : "recv: ") + std::strerror(errno));
    }
    if (out) data += moved;
    remaining -= static_cast<size_t>(moved);
    return true;
  }
};

// Moves both streams to their ends, asking again for a moment and then sleeping until one of them can move.
void pump(Stream* sending, Stream* receiving) {
  double idle_since = 0;
  while (sending->remaining > 0 || receiving->remaining > 0) {
    const bool sent = sending->move(), received = receiving->move();
    if (sent || received) {
      idle_since = 0;
      continue;
    }
    const double now = wall();
    if (idle_since == 0) idle_since = now;
    if (now - idle_since < kSpin) continue;
    const short room = sending->may_move() > 0 ? POLLOUT : 0, bytes = receiving->remaining > 0 ? POLLIN : 0;
    pollfd waiting{sending->fd, static_cast<short>(room | bytes), 0};
    if (poll(&waiting, 1, static_cast<int>(kPatience * 1e3)) == 0) die("nothing moved for 60 s");
  }
}

class Pump {
 public:
  Pump(int fd, int rank, const Arguments& arguments)
      : fd_(fd),
        rank_(rank),
        collective_(arguments.text("collective")),
        latency_(static_cast<size_t>(arguments.number("latency"))),
        probe_(arguments.text("probe", "").c_str(), rank) {}

  Result measure(const Size& size) {
    const size_t sets = static_cast<size_t>(buffer_sets(size.bytes, 2));
    Buffers out(sets, std::vector<char>(size.bytes, 1));
    repeat(size.bytes, size.warmup, out);
    const double before = probe_.round_trip();
    Result result = repeat(size.bytes, size.calls, out);
    result.before = before;
    result.after = probe_.round_trip();
    return result;
  }

 private:
  using Buffers = std::vector<std::vector<char>>;

  Result repeat(size_t bytes, int calls, Buffers& out) {
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
        exchange(out[static_cast<size_t>(k) % out.size()], k % 2);
      }
      result.seconds.push_back((wall() - start) / cycle);
      result.cpu += cpu() - cpu_start;
    }
    return result;
  }

  void exchange(std::vector<char>& out, int root) {
    const bool all = collective_ == "allreduce" || collective_ == "broadcast";
    const size_t bytes = all ? out.size() : out.size() / 2;
    const bool sends = collective_ != "broadcast" || rank_ == root;
    const bool receives = collective_ != "broadcast" || rank_ != root;
    Stream sending{fd_, out.data(), sends ? bytes : 0, true};
    Stream receiving{fd_, nullptr, receives ? bytes : 0, false};
    if (sends && receives) sending.opposite = &receiving.remaining;
    pump(&sending, &receiving);
  }

  void meet() {
    char mine = 1;
    Stream sending{fd_, &mine, 1, true}, receiving{fd_, nullptr, 1, false};
    pump(&sending, &receiving);
  }

  const int fd_;
  const int rank_;
  const std::string collective_;
  const size_t latency_;
  Probe probe_;
};

// The best settings that were found. Some systems default to bbr, which paces with timers and halves such a wire; a
// connection must start with cubic, for the pacing stays. With the window that the kernel finds by itself a step
// takes now 100 and now 400 us; this one is steady.
int new_socket() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0), window = 208 << 10;
  if (fd < 0) die(std::string("socket: ") + std::strerror(errno));
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &window, sizeof window);
  return fd;
}

// Rank 0 listens, rank 1 connects.
int connection(int rank, const Arguments& arguments) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(arguments.number("port")));
  if (inet_pton(AF_INET, arguments.text("address").c_str(), &address.sin_addr) != 1) die("bad --address");
  const auto* where = reinterpret_cast<const sockaddr*>(&address);
  const int on = 1;
  int fd = -1;
  if (rank == 0) {
    const int listener = new_socket();
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, where, sizeof address) != 0 || listen(listener, 1) != 0) {
      die(std::string("listen: ") + std::strerror(errno));
    }
    pollfd waiting{listener, POLLIN, 0};
    if (poll(&waiting, 1, static_cast<int>(kPatience * 1e3)) == 1) fd = accept(listener, nullptr, nullptr);
    close(listener);
  }
  for (const double deadline = wall() + kPatience; rank != 0 && fd < 0 && wall() < deadline;) {
    fd = new_socket();
    if (connect(fd, where, sizeof address) == 0) break;
    close(fd);
    fd = -1;
    usleep(20000);
  }
  if (fd < 0) die("the other side did not come");
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

}  // namespace limit

int main(int argc, char** argv) {
  const limit::Arguments arguments(argc, argv);
  const int rank = static_cast<int>(arguments.number("rank"));
  limit::Pump pump(limit::connection(rank, arguments), rank, arguments);
  std::vector<limit::Result> results;
  for (const limit::Size& size : arguments.sizes()) results.push_back(pump.measure(size));
  limit::write_results(arguments.text("output"), rank, results);
}
