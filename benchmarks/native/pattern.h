// What the ranks put in and what must come out: the patterns of ddl/tools/bench/values.py.
#pragma once

#include <cstddef>
#include <string>

namespace limit {

class Pattern {
 public:
  Pattern(const std::string& collective, int ranks) : collective_(collective), ranks_(ranks) {
    while ((period_ - 1) * ranks > 256 || !is_prime(period_)) period_--;
  }

  // Element i of what `rank` puts in.
  int put_in(size_t i, int rank, int root, int salt) const {
    return collective_ == "broadcast" && rank != root ? 0 : number(i, rank, salt);
  }

  // Element i of what `rank` gets out, for a buffer of `count` elements.
  int expected(size_t i, size_t count, int rank, int root, int salt) const {
    const size_t share = count / static_cast<size_t>(ranks_), own = static_cast<size_t>(rank) * share;
    if (collective_ == "broadcast") return number(i, root, salt);
    if (collective_ == "allgather") return number(i % share, static_cast<int>(i / share), salt);
    if (collective_ == "alltoall") return number(own + i % share, static_cast<int>(i / share), salt);
    int sum = 0;
    for (int j = 0; j < ranks_; j++) sum += number(collective_ == "reducescatter" ? own + i : i, j, salt);
    return sum;
  }

 private:
  static bool is_prime(int n) {
    for (int d = 2; d < n; d++) {
      if (n % d == 0) return false;
    }
    return true;
  }
  int number(size_t i, int rank, int salt) const {
    return static_cast<int>((i + static_cast<size_t>(3 * rank + salt)) % static_cast<size_t>(period_));
  }

  const std::string collective_;
  const int ranks_;
  int period_ = 61;
};

}  // namespace limit
