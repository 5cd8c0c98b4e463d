#include "operation.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "driver.h"
#include "group.h"
#include "reduce.h"
#include "settings.h"

namespace fake_nccl {

namespace {

constexpr int kGarbage = 0xEE;

const char* name_of(int kind) {
  switch (static_cast<Kind>(kind)) {
    case Kind::kReduceScatter:
      return "reduce-scatter";
    case Kind::kAllGather:
      return "all-gather";
    case Kind::kAllReduce:
      return "all-reduce";
  }
  return "operation";
}

std::string text_of(const Header& header) {
  std::string text = name_of(header.kind) + (" of " + std::to_string(header.count));
  text += " elements of type " + std::to_string(header.type);
  return header.op < 0 ? text : text + " with operator " + std::to_string(header.op);
}

// Kernels hold their operation by a pointer of their own.
std::shared_ptr<Operation>& held(void* argument) { return *static_cast<std::shared_ptr<Operation>*>(argument); }
void release(void* argument) { delete static_cast<std::shared_ptr<Operation>*>(argument); }

uint64_t address(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

}  // namespace

Operation::Operation(std::shared_ptr<Communicator> communicator, const Request& request)
    : request(request), communicator(std::move(communicator)) {}

size_t Operation::from_bytes() const {
  const size_t bytes = request.count * size_of(static_cast<Type>(request.type));
  return request.kind == Kind::kReduceScatter ? bytes * static_cast<size_t>(communicator->size) : bytes;
}

size_t Operation::to_bytes() const {
  const size_t bytes = request.count * size_of(static_cast<Type>(request.type));
  return request.kind == Kind::kAllGather ? bytes * static_cast<size_t>(communicator->size) : bytes;
}

std::string Operation::text() const {
  return name_of(static_cast<int>(request.kind)) + (" " + std::to_string(number)) + " of " + communicator->text();
}

std::string Operation::refusal() const {
  if (request.type < 0 || request.type >= kTypes) return "there is no type " + std::to_string(request.type);
  if (request.op < -1 || request.op >= kOperators) return "there is no operator " + std::to_string(request.op);
  if (request.count == 0) return "";
  if (request.from == nullptr || request.to == nullptr) return "a null pointer";
  const uint64_t from = address(request.from), to = address(request.to);
  if (from % size_of(static_cast<Type>(request.type)) != 0 || to % size_of(static_cast<Type>(request.type)) != 0) {
    return "an address that is no multiple of an element's size";
  }
  if (from + from_bytes() <= to || to + to_bytes() <= from) return "";
  const uint64_t own = static_cast<uint64_t>(communicator->rank) * std::min(from_bytes(), to_bytes());
  bool in_place = from == to;
  if (request.kind == Kind::kReduceScatter) in_place = to == from + own;
  if (request.kind == Kind::kAllGather) in_place = from == to + own;
  return in_place ? "" : "what it reads and what it writes overlap, and not as in place";
}

void Operation::announce(uint64_t barrier) {
  Mailbox& own = *communicator->own();
  barrier_ = barrier;
  number = communicator->numbers.fetch_add(1) + 1;
  Header& header = own.headers[number % kHeaders];
  header.count = request.count;
  header.kind = static_cast<int>(request.kind);
  header.type = request.type;
  header.op = request.op;
  header.other_communicator = other_communicator;
  header.other_number = other_number;
  own.launched.store(number, std::memory_order_release);
}

FakeKernel Operation::bringing(const std::shared_ptr<Operation>& self) const {
  FakeKernel kernel = {};
  kernel.name = request.entry;
  kernel.ready = [](void* argument) { return held(argument)->can_bring() ? 1 : 0; };
  kernel.run = [](void* argument, const char* from, char*) { held(argument)->bring(from); };
  kernel.release = release;
  kernel.argument = new std::shared_ptr<Operation>(self);
  kernel.from = address(request.from);
  kernel.from_bytes = from_bytes();
  return kernel;
}

// The kernel may read until its end, and write before.
FakeKernel Operation::taking(const std::shared_ptr<Operation>& self) const {
  FakeKernel kernel = bringing(self);
  kernel.ready = [](void* argument) { return held(argument)->can_take() ? 1 : 0; };
  kernel.run = [](void* argument, const char* from, char* to) { held(argument)->take(from, to); };
  kernel.to = address(request.to);
  kernel.to_bytes = to_bytes();
  return kernel;
}

// Operations of a communicator are run in the order in which they were launched, whatever their streams.
bool Operation::can_bring() const { return communicator->own()->ended.load(std::memory_order_acquire) >= barrier_; }

void Operation::bring(const char* from) {
  Communicator& all = *communicator;
  uint64_t needed = number;
  for (int other = 0; other < all.size; ++other) {
    needed = std::min(needed, all.box(other).ended.load(std::memory_order_acquire) + 1);
  }
  while (all.removed + 1 < needed) ::unlink(payload_file(all.folder, all.rank, ++all.removed).c_str());
  if (over()) return;
  if (from == nullptr || !write_payload(payload_file(all.folder, all.rank, number), from, from_bytes())) {
    complain(text() + ": rank " + std::to_string(all.rank) + " can bring nothing");
  }
  all.own()->started.store(number, std::memory_order_release);
}

bool Operation::same(const Header& other) const {
  return other.count == request.count && other.kind == static_cast<int>(request.kind) && other.type == request.type &&
         other.op == request.op;
}

std::string Operation::hindrance(bool late, bool* waits) const {
  *waits = false;
  for (int other = 0; other < communicator->size; ++other) {
    const Mailbox& box = communicator->box(other);
    const std::string who = "rank " + std::to_string(other);
    const bool launched = box.launched.load(std::memory_order_acquire) >= number;
    const Header& header = box.headers[number % kHeaders];
    if (launched && !same(header)) {
      const Header& own = communicator->own()->headers[number % kHeaders];
      return text() + ": " + who + " launched " + text_of(header) + ", and rank " +
             std::to_string(communicator->rank) + " " + text_of(own);
    }
    const bool started = box.started.load(std::memory_order_acquire) >= number;
    // Who aborts takes what it brought with it, unless its own operation was over.
    const bool aborted =
        box.aborted.load(std::memory_order_acquire) != 0 && box.computed.load(std::memory_order_acquire) < number;
    if (started && !aborted) continue;
    *waits = true;
    if (!late) continue;
    if (aborted) return who + " aborted before " + text();
    return who +
           (launched ? " launched " + text() + ", but its stream never came to it" : " never launched " + text());
  }
  return "";
}

bool Operation::can_take() {
  if (over()) return true;
  const auto now = std::chrono::steady_clock::now();
  if (deadline_ == std::chrono::steady_clock::time_point()) deadline_ = now + patience();
  bool waits = false;
  return !hindrance(now >= deadline_, &waits).empty() || !waits;
}

void Operation::take(const char* from, char* to) {
  bool waits = false;
  if (over()) {
    garbage(to);
  } else {
    const std::string hindered = hindrance(true, &waits);
    const std::string disordered = hindered.empty() ? order() : "";
    if (from == nullptr || to == nullptr || !hindered.empty()) {
      if (!hindered.empty()) fail(kInternalError, hindered);
      communicator->broken.store(kInternalError);
      garbage(to);
    } else {
      if (!disordered.empty()) complain(disordered);
      compute(to);
      communicator->own()->computed.store(number, std::memory_order_release);
    }
  }
  communicator->own()->ended.store(number, std::memory_order_release);
}

// Each rank names what it launched before on its device with another communicator: this one must have done so, too.
std::string Operation::order() const {
  for (int other = 0; other < communicator->size; ++other) {
    const Header& header = communicator->box(other).headers[number % kHeaders];
    const std::string name =
        header.other_communicator == 0 ? "" : name_on_device(communicator->device, header.other_communicator);
    if (name.empty()) continue;
    const auto before = launched_before.find(header.other_communicator);
    if (before != launched_before.end() && before->second >= header.other_number) continue;
    return "rank " + std::to_string(other) + " launched operation " + std::to_string(header.other_number) + " of " +
           name + " before " + text() + ", and rank " + std::to_string(communicator->rank) + " behind it";
  }
  return "";
}

void Operation::compute(char* to) {
  const Communicator& all = *communicator;
  std::vector<std::unique_ptr<Payload>> payloads;
  std::vector<const char*> inputs;
  for (int other = 0; other < all.size; ++other) {
    payloads.push_back(std::make_unique<Payload>(payload_file(all.folder, other, number), from_bytes()));
    if (payloads.back()->data() == nullptr) {
      complain(text() + ": what rank " + std::to_string(other) + " brought is not there");
      return garbage(to);
    }
    inputs.push_back(payloads.back()->data());
  }
  if (request.kind == Kind::kAllGather) {
    for (size_t other = 0; other < inputs.size(); ++other) {
      std::memcpy(to + other * from_bytes(), inputs[other], from_bytes());
    }
    return;
  }
  if (request.kind == Kind::kReduceScatter) {
    for (const char*& input : inputs) input += static_cast<size_t>(all.rank) * to_bytes();
  }
  reduce(static_cast<Type>(request.type), static_cast<Operator>(request.op), inputs, request.count, to);
}

void Operation::garbage(char* to) const {
  if (to != nullptr) std::memset(to, kGarbage, to_bytes());
}

}  // namespace fake_nccl
