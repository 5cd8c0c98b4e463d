// The limit within a host: the same collective as the contestants', by the plainest program that this machine allows.
//
// One process per rank. All buffers lie in one shared mapping, so nothing is copied to be sent: a rank meets the
// others, reads its share of everybody's input, writes the result to wherever it is wanted, in tiles of 16 KiB, and
// meets them again. An all-reduce may write each sum everywhere at once, which is faster in caches, or a tile to its
// own buffer and from there to the others, which is faster in memory: what wins the warm-up of a size is used.
// Buffers are rotated, refilled and timed exactly as in ddl/tools/bench/loop.py. No code of DDL is used.
//
//   limit --collective allreduce --dtype float32 --ranks 2 --latency 65536 --output DIR [--probe FILE]
//         --calls bytes:calls:warmup,...
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "common.h"
#include "elements.h"
#include "meeting.h"
#include "pattern.h"
#include "probe.h"

namespace limit {

constexpr size_t kTile = 16 << 10;  // bytes

template <typename T>
struct Buffers {
  std::vector<typename T::Bits*> inputs, outputs;  // by rank; the same where the collective works in place
  int root;
};

template <typename T, int kRanks>
class Rank {
 public:
  using Bits = typename T::Bits;

  Rank(const Arguments& arguments, int rank, Meeting* meeting, char* memory)
      : collective_(arguments.text("collective")),
        latency_(static_cast<size_t>(arguments.number("latency"))),
        rank_(rank),
        meeting_(meeting),
        memory_(memory),
        probe_(arguments.text("probe", "").c_str(), rank),
        pattern_(collective_, kRanks) {}

  // All that a size needs of the shared mapping, in bytes.
  static size_t needed(size_t bytes) {
    return static_cast<size_t>(buffer_sets(bytes, kRanks) + 1) * kRanks * 2 * padded(bytes);
  }

  Result measure(const Size& size) {
    count_ = size.bytes / sizeof(Bits);
    const bool one_way = collective_ == "broadcast";
    const bool back_to_back = size.bytes <= latency_;
    const int cycle = one_way && back_to_back ? kRanks : 1;
    const int sets = buffer_sets(size.bytes, cycle);
    std::vector<Buffers<T>> slots;
    for (int i = 0; i <= sets; i++) slots.push_back(place(size.bytes, i));  // one more for the last call
    for (int salt = 0; salt < sets; salt++) {
      fill(slots[salt], salt);
      run(slots[salt]);
      check(slots[salt], salt);
    }
    const int calls = (size.calls + cycle - 1) / cycle * cycle;
    const int warmup = (std::max(size.warmup, 1) + cycle - 1) / cycle * cycle;
    Result result{size.bytes, {}, 0, calls};
    if (back_to_back) {
      for (Buffers<T>& slot : slots) std::fill_n(slot.inputs[rank_], input_count(), bits_of(0));
      slots[sets].root = (calls - 1) % kRanks;
      warm_up([&] { return run_back_to_back(slots, warmup, cycle); });
      fill(slots[sets], sets);
      const double before = probe_.round_trip();
      result = run_back_to_back(slots, calls, cycle);
      result.before = before;
      result.after = probe_.round_trip();
      check(slots[sets], sets);
    } else {
      warm_up([&] { return run_after_meetings(slots, sets, warmup, 0); });
      const double before = probe_.round_trip();
      result = run_after_meetings(slots, sets, calls, sets);
      result.before = before;
      result.after = probe_.round_trip();
      check(slots[(calls - 1) % sets], sets);
    }
    result.bytes = size.bytes;
    meeting_->meet();  // nobody refills what another still checks
    return result;
  }

 private:
  static size_t padded(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
  static Bits bits_of(float value) {
    Bits bits;
    T::store(&bits, value);
    return bits;
  }
  size_t input_count() const { return collective_ == "allgather" ? count_ / kRanks : count_; }
  size_t output_count() const { return collective_ == "reducescatter" ? count_ / kRanks : count_; }

  Buffers<T> place(size_t bytes, int index) {
    const bool in_place = collective_ == "allreduce" || collective_ == "broadcast";
    Buffers<T> slot;
    slot.root = index % kRanks;
    for (int j = 0; j < kRanks; j++) {
      char* at = memory_ + (static_cast<size_t>(index) * kRanks + static_cast<size_t>(j)) * 2 * padded(bytes);
      slot.inputs.push_back(reinterpret_cast<Bits*>(at));
      slot.outputs.push_back(reinterpret_cast<Bits*>(in_place ? at : at + padded(bytes)));
    }
    return slot;
  }

  void fill(const Buffers<T>& slot, int salt) {
    for (size_t i = 0; i < input_count(); i++) {
      T::store(slot.inputs[rank_] + i, static_cast<float>(pattern_.put_in(i, rank_, slot.root, salt)));
    }
  }
  void check(const Buffers<T>& slot, int salt) {
    for (size_t i = 0; i < output_count(); i++) {
      const int wanted = pattern_.expected(i, count_, rank_, slot.root, salt);
      if (T::load(slot.outputs[rank_] + i) != static_cast<float>(wanted)) {
        meeting_->fail("wrong value: rank " + std::to_string(rank_) + ", " + collective_ + " of " +
                       std::to_string(count_ * sizeof(Bits)) + " bytes: first wrong index " + std::to_string(i));
      }
    }
  }

  // The collective itself.
  void run(const Buffers<T>& slot) {
    meeting_->meet();
    const size_t share = count_ / kRanks;
    const size_t begin = static_cast<size_t>(rank_) * count_ / kRanks;
    const size_t end = static_cast<size_t>(rank_ + 1) * count_ / kRanks;
    const size_t step = kTile / sizeof(Bits);
    if (collective_ == "allreduce") {
      for (size_t i = begin; i < end; i += step) {
        Bits* at[kRanks];
        for (int j = 0; j < kRanks; j++) at[j] = slot.inputs[j] + i;
        const size_t n = std::min(step, end - i);
        if (at_once_) {
          add_up<T, kRanks, kRanks>(at, at, n);
        } else {
          add_up<T, kRanks, 1>(at, &at[rank_], n);
          for (int j = 1; j < kRanks; j++) copy(at[(rank_ + j) % kRanks], at[rank_], n);
        }
      }
    } else if (collective_ == "reducescatter") {
      for (size_t i = begin; i < end; i += step) {
        Bits *at[kRanks], *own = slot.outputs[rank_] + (i - begin);
        for (int j = 0; j < kRanks; j++) at[j] = slot.inputs[j] + i;
        add_up<T, kRanks, 1>(at, &own, std::min(step, end - i));
      }
    } else if (collective_ == "broadcast") {  // every rank carries its share from the root to all others
      for (size_t i = begin; i < end; i += step) {
        for (int j = 0; j < kRanks; j++) {
          if (j != slot.root) copy(slot.inputs[j] + i, slot.inputs[slot.root] + i, std::min(step, end - i));
        }
      }
    } else {
      const size_t from = collective_ == "alltoall" ? static_cast<size_t>(rank_) * share : 0;
      for (int j = 0; j < kRanks; j++) {
        const int other = (rank_ + j) % kRanks;  // not all from the same one at the same time
        copy(slot.outputs[rank_] + static_cast<size_t>(other) * share, slot.inputs[other] + from, share);
      }
    }
    meeting_->meet();
  }
  static void copy(Bits* to, const Bits* from, size_t count) { std::memcpy(to, from, count * sizeof(Bits)); }

  template <typename Run>
  void warm_up(Run run) {
    std::vector<double> medians;
    for (bool at_once : {true, false}) {
      at_once_ = at_once;
      run();
      std::vector<double> seconds = run().seconds;
      std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
      medians.push_back(seconds[seconds.size() / 2]);
    }
    at_once_ = meeting_->agree(medians[0] < medians[1]);
  }

  Result run_back_to_back(const std::vector<Buffers<T>>& slots, int calls, int cycle) {
    const int sets = static_cast<int>(slots.size()) - 1;
    Result result{0, {}, -cpu(), calls};
    for (int first = 0; first < calls; first += cycle) {
      const double start = wall();
      for (int i = first; i < first + cycle; i++) run(slots[i == calls - 1 ? sets : i % sets]);
      result.seconds.push_back((wall() - start) / cycle);
    }
    result.cpu += cpu();
    return result;
  }

  Result run_after_meetings(const std::vector<Buffers<T>>& slots, int sets, int calls, int last_salt) {
    Result result{0, {}, 0, calls};
    for (int i = 0; i < calls; i++) {
      const Buffers<T>& slot = slots[i % sets];
      if (i == calls - 1 && last_salt != 0) {
        fill(slot, last_salt);
      } else {
        std::fill_n(slot.inputs[rank_], input_count(), bits_of(1));
      }
      meeting_->meet();
      const double cpu_start = cpu(), start = wall();
      run(slot);
      const double end = wall();
      result.cpu += cpu() - cpu_start;
      result.seconds.push_back(end - start);
    }
    return result;
  }

  const std::string collective_;
  const size_t latency_;
  const int rank_;
  Meeting* const meeting_;
  char* const memory_;
  Probe probe_;
  const Pattern pattern_;
  bool at_once_ = true;
  size_t count_ = 0;
};

char* share(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) die("no shared memory of " + std::to_string(bytes) + " bytes");
  return static_cast<char*>(memory);
}

template <typename T, int kRanks>
int run_ranks(const Arguments& arguments) {
  const std::vector<Size> sizes = arguments.sizes();
  size_t needed = 0;
  for (const Size& size : sizes) needed = std::max(needed, Rank<T, kRanks>::needed(size.bytes));
  char* memory = share(needed);
  Board* board = new (share(sizeof(Board))) Board();
  const pid_t parent = getpid();
  int rank = 0;
  for (int other = 1; other < kRanks && rank == 0; other++) {
    if (fork() == 0) rank = other;
  }
  if (rank != 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) return 1;
  }
  Meeting meeting(board, rank, kRanks);
  Rank<T, kRanks> me(arguments, rank, &meeting, memory);
  std::vector<Result> results;
  for (const Size& size : sizes) results.push_back(me.measure(size));
  write_results(arguments.text("output"), rank, results);
  bool good = true;
  for (int status = 0; rank == 0 && wait(&status) > 0;) good = good && status == 0;
  return good ? 0 : 1;
}

template <typename T>
int run_type(const Arguments& arguments) {
  switch (arguments.number("ranks")) {  // a number that the compiler knows makes the inner loops disappear
    case 1:
      return run_ranks<T, 1>(arguments);
    case 2:
      return run_ranks<T, 2>(arguments);
    case 3:
      return run_ranks<T, 3>(arguments);
    case 4:
      return run_ranks<T, 4>(arguments);
    case 8:
      return run_ranks<T, 8>(arguments);
    case 16:
      return run_ranks<T, 16>(arguments);
    default:
      die("it is compiled for 1, 2, 3, 4, 8 and 16 ranks");
  }
}

}  // namespace limit

int main(int argc, char** argv) {
  const limit::Arguments arguments(argc, argv);
  const std::string dtype = arguments.text("dtype");
  if (dtype == "float32") return limit::run_type<limit::Float32>(arguments);
  if (dtype == "bfloat16") return limit::run_type<limit::Bfloat16>(arguments);
#ifdef __F16C__
  if (dtype == "float16") return limit::run_type<limit::Float16>(arguments);
#endif
  limit::die("no " + dtype + " on this processor");
}
