#include "device/nccl.h"

#include <dlfcn.h>
#include <sched.h>

#include <climits>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/futex.h"

namespace ddl {

namespace {

// Of nccl.h, whose numbers do not change.
constexpr int kSuccess = 0, kInProgress = 7;
constexpr unsigned kMagic = 0xcafebeef, kVersion = 21700;
constexpr size_t kIdBytes = 128;
constexpr const char* kLibrary = "libnccl.so.2";
constexpr Nanoseconds kNap = 200 * kMicrosecond;
constexpr Nanoseconds kAwake = 300 * kMicrosecond;  // at first: a call of each all-reduce takes less

struct Id {
  char bytes[kIdBytes];
};

// As of NCCL 2.17; a newer one fills in what this lacks.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = kMagic, version = kVersion;
  int blocking = 0;  // otherwise it could not be aborted at any time
  int cluster_size = INT_MIN, least_blocks = INT_MIN, most_blocks = INT_MIN;  // NCCL decides
  const char* network = nullptr;
};

// NCCL's number of a type; -1: it has none.
int number(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
      return 0;
    case DType::kUInt8:
      return 1;
    case DType::kInt32:
      return 2;
    case DType::kUInt32:
      return 3;
    case DType::kInt64:
      return 4;
    case DType::kUInt64:
      return 5;
    case DType::kFloat16:
      return 6;
    case DType::kFloat32:
      return 7;
    case DType::kFloat64:
      return 8;
    case DType::kBFloat16:
      return 9;
    case DType::kInt16:
    case DType::kUInt16:
    case DType::kBool:
      break;
  }
  return -1;
}

int number(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return 0;
    case ReduceOp::kProduct:
      return 1;
    case ReduceOp::kMax:
      return 2;
    case ReduceOp::kMin:
      return 3;
    case ReduceOp::kAverage:
      return 4;
  }
  return -1;
}

bool is_integer(DType dtype) {
  return dtype != DType::kFloat16 && dtype != DType::kBFloat16 && dtype != DType::kFloat32 &&
         dtype != DType::kFloat64;
}

}  // namespace

struct NcclTable {
  int (*version)(int*) = nullptr;
  int (*make_id)(Id*) = nullptr;
  int (*init)(void**, int, Id, int, Config*) = nullptr;
  int (*reduce_scatter)(const void*, void*, size_t, int, int, void*, StreamHandle) = nullptr;
  int (*all_gather)(const void*, void*, size_t, int, void*, StreamHandle) = nullptr;
  int (*async_error)(void*, int*) = nullptr;
  int (*abort)(void*) = nullptr;
  const char* (*error_text)(int) = nullptr;
};

Nccl::Nccl(const std::string& library, const std::string& otherwise) {
  const std::string name = !library.empty() ? library : !otherwise.empty() ? otherwise : kLibrary;
  // The copy that torch has loaded, if there is one: two copies would not know of one another. Never closed.
  void* handle = library.empty() ? ::dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD) : nullptr;
  if (handle == nullptr) handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    throw Error(ErrorKind::kResourceError,
                "NCCL cannot be loaded (" + std::string(why != nullptr ? why : name) + ")");
  }
  auto table = std::make_shared<NcclTable>();
  const auto find = [&](const char* symbol, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(::dlsym(handle, symbol));
    if (*function == nullptr) {
      throw Error(ErrorKind::kResourceError, name + " is not NCCL 2.17 or newer: it has no " + symbol);
    }
  };
  find("ncclGetVersion", &table->version);
  find("ncclGetUniqueId", &table->make_id);
  find("ncclCommInitRankConfig", &table->init);
  find("ncclReduceScatter", &table->reduce_scatter);
  find("ncclAllGather", &table->all_gather);
  find("ncclCommGetAsyncError", &table->async_error);
  find("ncclCommAbort", &table->abort);
  find("ncclGetErrorString", &table->error_text);
  table_ = std::move(table);
}

int Nccl::version() const {
  int version = 0;
  (void)table_->version(&version);
  return version;
}

std::string Nccl::make_id() const {
  Id id{};
  const int code = table_->make_id(&id);
  if (code != kSuccess) {
    throw Error(ErrorKind::kResourceError, std::string("ncclGetUniqueId: ") + table_->error_text(code));
  }
  return {id.bytes, sizeof id.bytes};
}

bool Nccl::knows(DType dtype, ReduceOp op) {
  // An average of integers would be truncated twice, within a host and between hosts.
  return number(dtype) >= 0 && number(op) >= 0 && !(op == ReduceOp::kAverage && is_integer(dtype));
}

NcclGroup::NcclGroup(Nccl nccl, const std::string& id, int size, int rank, int device, Nanoseconds patience)
    : nccl_(std::move(nccl)),
      gpu_(Gpu::of(device)),
      driver_(Driver::get()),
      size_(size),
      rank_(rank),
      patience_(patience) {
  if (id.size() != kIdBytes) throw Error(ErrorKind::kInvalidArgument, "an id of NCCL has 128 bytes");
  const Driver::Current current(driver_, gpu_->context());
  stream_ = driver_.make_stream();
  Id bytes{};
  std::memcpy(bytes.bytes, id.data(), kIdBytes);
  Config config;
  void* communicator = nullptr;
  const int code = nccl_.table_->init(&communicator, size, bytes, rank, &config);
  communicator_ = communicator;
  try {
    await("ncclCommInitRankConfig", code);
  } catch (const Error&) {
    abort();
    throw;
  }
}

NcclGroup::~NcclGroup() {
  abort();  // unlike ncclCommDestroy, it waits for nobody
  try {
    const Driver::Current current(driver_, gpu_->context());
    driver_.destroy_stream(stream_);
  } catch (const Error&) {
    // The GPU has failed, which is known by now.
  }
}

void NcclGroup::fail(const char* name, int code) const {
  throw Error(ErrorKind::kResourceError, std::string(name) + " on GPU " + std::to_string(gpu_->device()) + ": " +
                                             nccl_.table_->error_text(code) + " (" + std::to_string(code) +
                                             "); NCCL_DEBUG=INFO says more");
}

// A group that does not block says "in progress" until the call is done; nothing else may be called before.
void NcclGroup::await(const char* name, int code) {
  const Nanoseconds deadline = now_ns() + patience_, awake = now_ns() + kAwake;
  while (code == kInProgress) {
    if (aborted_) fail(name, code);
    if (now_ns() > deadline) {
      throw Error(ErrorKind::kCollectiveTimeout,
                  std::string(name) + " on GPU " + std::to_string(gpu_->device()) + " has not ended within " +
                      std::to_string(patience_ / kMillisecond) + " ms; do all ranks of this host make the call?");
    }
    int state = kSuccess;
    const int asked = nccl_.table_->async_error(communicator_, &state);
    code = asked != kSuccess ? asked : state;
    if (code != kInProgress) break;
    if (now_ns() < awake) {
      ::sched_yield();
    } else {
      nap(kNap);
    }
  }
  if (code != kSuccess) fail(name, code);
}

void NcclGroup::check_usable() const {
  if (aborted_) throw Error(ErrorKind::kInvalidState, "this group of NCCL was aborted after an error");
}

template <typename Body>
void NcclGroup::call(const char* name, Body body) {
  const Lock lock(mutex_);
  check_usable();
  calling_ = true;
  try {
    const Driver::Current current(driver_, gpu_->context());
    await(name, body(*nccl_.table_));
  } catch (...) {
    calling_ = false;
    throw;
  }
  calling_ = false;
}

void NcclGroup::follow(StreamHandle producer) {
  const Driver::Current current(driver_, gpu_->context());
  if (driver_.capturing(producer)) {
    throw Error(ErrorKind::kInvalidState,
                "a CUDA graph is being captured on the array's stream, and a collective cannot be a part of a graph; "
                "call it outside of the capture");
  }
  const EventHandle event = driver_.make_event();
  driver_.record(event, producer);
  driver_.wait(stream_, event);
  driver_.destroy_event(event);  // the driver keeps it until it has been waited for
}

void NcclGroup::reduce_scatter(DevicePointer data, uint64_t count, DType dtype, ReduceOp op) {
  auto* const own = reinterpret_cast<char*>(data) + static_cast<uint64_t>(rank_) * count * element_size(dtype);
  call("ncclReduceScatter", [&](const NcclTable& table) {
    return table.reduce_scatter(reinterpret_cast<const void*>(data), own, count, number(dtype), number(op),
                                communicator_, stream_);
  });
}

void NcclGroup::all_gather(DevicePointer data, uint64_t count, DType dtype) {
  const auto* const own =
      reinterpret_cast<const char*>(data) + static_cast<uint64_t>(rank_) * count * element_size(dtype);
  call("ncclAllGather", [&](const NcclTable& table) {
    return table.all_gather(own, reinterpret_cast<void*>(data), count, number(dtype), communicator_, stream_);
  });
}

std::string NcclGroup::problem() {
  if (calling_) return "";  // who asks must not wait for it
  const Lock lock(mutex_);
  if (aborted_) return "";
  int state = kSuccess;
  const int code = nccl_.table_->async_error(communicator_, &state);
  const int wrong = code != kSuccess ? code : state;
  if (wrong == kSuccess || wrong == kInProgress) return "";
  return std::string("NCCL on GPU ") + std::to_string(gpu_->device()) + ": " + nccl_.table_->error_text(wrong) +
         " (" + std::to_string(wrong) + ")";
}

void NcclGroup::abort() {
  if (aborted_.exchange(true)) return;
  const Lock lock(mutex_);  // who is in a call has seen it, and leaves
  void* const communicator = communicator_;
  if (communicator != nullptr) (void)nccl_.table_->abort(communicator);  // nobody can do more
}

}  // namespace ddl
