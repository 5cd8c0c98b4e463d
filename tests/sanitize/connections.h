// The TCP connections between ranks of different hosts, and who brings them: a thread of its own while operations are
// already waiting for them, as ddl/_comm/connector.py does.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "engine/communicator.h"

namespace ddl::test {

// One end of a connection, for the rank that it was made for. A failure on the way ends the program, so plain numbers
// do.
struct End {
  int peer, number, fd;
};

// What every rank is to be given: each stream to each rank of another host, `connections` times on the large lane.
class Connections {
 public:
  Connections(int size, int per_host, int connections) : ends_(static_cast<size_t>(size)) {
    for (int high = 1; high < size; ++high) {
      for (int low = 0; low < high; ++low) {
        if (low / per_host == high / per_host) continue;
        for (int number = 0; number < connections * kStreams; ++number) {
          const bool large = lane_of_slot(number % kStreams / kMaxChannels) == LaneId::kLarge;
          if (number < kStreams || large) connect(low, high, number);
        }
      }
    }
  }

  std::vector<End> take(int rank) { return std::move(ends_[static_cast<size_t>(rank)]); }

 private:
  void connect(int low, int high, int number) {
    UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int caller = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener.get(), any, length) != 0 || ::listen(listener.get(), 1) != 0 ||
        ::getsockname(listener.get(), any, &length) != 0 || ::connect(caller, any, length) != 0) {
      throw_errno("a connection to oneself");
    }
    const int called = ::accept(listener.get(), nullptr, nullptr);
    if (called < 0) throw_errno("accept");
    ends_[static_cast<size_t>(low)].push_back({high, number, called});
    ends_[static_cast<size_t>(high)].push_back({low, number, caller});
  }

  std::vector<std::vector<End>> ends_;
};

// Brings them in any order, not all at once.
inline void bring(std::vector<End> ends, Communicator* communicator, unsigned seed) {
  std::mt19937 random(seed);
  std::shuffle(ends.begin(), ends.end(), random);
  for (const End& end : ends) {
    if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    communicator->add_connection(end.peer, end.number, end.fd, nullptr);  // takes it over
  }
}

}  // namespace ddl::test
