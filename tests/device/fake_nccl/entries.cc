// What the library exports of NCCL. Whatever is wrong with a call is an error and a violation.
#include <cstdio>
#include <cstring>
#include <random>
#include <string>

#include "communicator.h"
#include "driver.h"
#include "group.h"
#include "settings.h"

namespace fake_nccl {

namespace {

using Progress = Communicator::Progress;

// A call that the test refuses breaks the communicator, unless it is the caller who was wrong.
int injected(const char* entry, void* handle) {
  const int code = admit(entry);
  if (code == kSuccess || code == kInvalidArgument || code == kInvalidUsage || code == kInProgress) return code;
  if (const auto communicator = find(entry, handle)) communicator->broken.store(code);
  return code;
}

int too_early(const char* entry, const Communicator& communicator) {
  return fail(kInvalidArgument,
              std::string(entry) +
                  ": a call before ncclCommGetAsyncError has told that the former is no longer in progress (" +
                  communicator.text() + ")");
}

int operate(void* handle, const Request& request) {
  if (const int code = injected(request.entry, handle)) return code;
  const std::shared_ptr<Communicator> communicator = find(request.entry, handle);
  if (communicator == nullptr) return kInvalidArgument;
  {
    const std::lock_guard<std::mutex> lock(communicator->mutex);
    if (communicator->progress != Progress::kNothing) return too_early(request.entry, *communicator);
  }
  if (communicator->finalized.load()) {
    return fail(kInvalidArgument, std::string(request.entry) + ": " + communicator->text() + " was finalized");
  }
  if (communicator->broken.load() != kSuccess) {
    return fail(kInvalidUsage,
                std::string(request.entry) + ": " + communicator->text() + " has failed, and can only be aborted");
  }
  return submit(communicator, request);
}

std::string config_refusal(const Config* config) {
  if (config == nullptr) return "";
  if (config->magic != kMagic) return "the config has another magic number";
  if (config->size < sizeof(Config) || config->size > 4096)
    return "the config has a size of " + std::to_string(config->size);
  if (config->version < 21700) return "the config has version " + std::to_string(config->version);
  if (config->blocking != kUndefined && config->blocking != 0 && config->blocking != 1) return "blocking is 0 or 1";
  return "";
}

int init(const char* entry, void** handle, int size, const UniqueId& id, int rank, const Config* config) {
  if (const int code = admit(entry)) return code;
  const auto wrong = [&](int code, const std::string& text) { return fail(code, std::string(entry) + ": " + text); };
  if (handle == nullptr) return wrong(kInvalidArgument, "a null pointer");
  *handle = nullptr;
  const std::string refusal = config_refusal(config);
  if (!refusal.empty()) return wrong(kInvalidArgument, refusal);
  if (size < 1 || rank < 0 || rank >= size) {
    return wrong(kInvalidArgument, "rank " + std::to_string(rank) + " of " + std::to_string(size));
  }
  if (std::strncmp(id.internal, "fake_nccl-", 10) != 0) return wrong(kInvalidArgument, "no id of ncclGetUniqueId");
  const CudaDriver* const cuda = driver();
  if (cuda == nullptr) return wrong(kSystemError, "DDL_CUDA_LIBRARY is not the fake driver");
  const int device = cuda->device();
  if (device < 0) return wrong(kUnhandledCudaError, "no context is current");
  auto communicator = std::make_shared<Communicator>(id, size, rank, config == nullptr || config->blocking != 0);
  communicator->device = cuda->physical(device);
  (void)cuda->get_context(&communicator->context);
  {
    const std::lock_guard<std::mutex> lock(communicator->mutex);
    const int code = communicator->begin();
    if (code != kInProgress) return code;
  }
  *handle = enter(communicator);
  return begun(communicator);
}

}  // namespace

FAKE_EXPORT int ncclGetVersion(int* version) {
  if (const int code = admit("ncclGetVersion")) return code;
  if (version == nullptr) return fail(kInvalidArgument, "ncclGetVersion: a null pointer");
  *version = settings().version;
  return kSuccess;
}

FAKE_EXPORT int ncclGetUniqueId(UniqueId* id) {
  if (const int code = admit("ncclGetUniqueId")) return code;
  if (id == nullptr) return fail(kInvalidArgument, "ncclGetUniqueId: a null pointer");
  std::random_device random;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "fake_nccl-%08x%08x%08x", random(), random(), random());
  return kSuccess;
}

FAKE_EXPORT int ncclCommInitRankConfig(void** handle, int size, UniqueId id, int rank, const Config* config) {
  return init("ncclCommInitRankConfig", handle, size, id, rank, config);
}

FAKE_EXPORT int ncclCommInitRank(void** handle, int size, UniqueId id, int rank) {
  return init("ncclCommInitRank", handle, size, id, rank, nullptr);
}

FAKE_EXPORT int ncclReduceScatter(const void* from, void* to, size_t count, int type, int op, void* communicator,
                                  void* stream) {
  return operate(communicator, {"ncclReduceScatter", Kind::kReduceScatter, from, to, count, type, op, stream});
}

FAKE_EXPORT int ncclAllGather(const void* from, void* to, size_t count, int type, void* communicator, void* stream) {
  return operate(communicator, {"ncclAllGather", Kind::kAllGather, from, to, count, type, -1, stream});
}

FAKE_EXPORT int ncclAllReduce(const void* from, void* to, size_t count, int type, int op, void* communicator,
                              void* stream) {
  return operate(communicator, {"ncclAllReduce", Kind::kAllReduce, from, to, count, type, op, stream});
}

FAKE_EXPORT int ncclGroupStart() {
  if (const int code = admit("ncclGroupStart")) return code;
  return group_start();
}

FAKE_EXPORT int ncclGroupEnd() {
  if (const int code = admit("ncclGroupEnd")) return code;
  return group_end();
}

FAKE_EXPORT int ncclCommGetAsyncError(void* handle, int* error) {
  if (const int code = admit("ncclCommGetAsyncError")) return code;
  const auto communicator = find("ncclCommGetAsyncError", handle);
  if (communicator == nullptr) return kInvalidArgument;
  if (error == nullptr) return fail(kInvalidArgument, "ncclCommGetAsyncError: a null pointer");
  *error = communicator->asynchronous_error();
  return kSuccess;
}

FAKE_EXPORT int ncclCommAbort(void* handle) {
  if (const int code = admit("ncclCommAbort")) return code;
  const auto communicator = find("ncclCommAbort", handle);
  if (communicator == nullptr) return kInvalidArgument;
  communicator->abort();
  return kSuccess;
}

FAKE_EXPORT int ncclCommFinalize(void* handle) {
  if (const int code = injected("ncclCommFinalize", handle)) return code;
  const auto communicator = find("ncclCommFinalize", handle);
  if (communicator == nullptr) return kInvalidArgument;
  {
    const std::lock_guard<std::mutex> lock(communicator->mutex);
    if (communicator->progress != Progress::kNothing) return too_early("ncclCommFinalize", *communicator);
    if (communicator->finalized.exchange(true)) {
      return fail(kInvalidArgument, "ncclCommFinalize: " + communicator->text() + " was finalized");
    }
    communicator->finalize();
  }
  return communicator->blocking ? communicator->settle() : kInProgress;
}

// Finalizes what was not finalized, and waits for that.
FAKE_EXPORT int ncclCommDestroy(void* handle) {
  if (const int code = injected("ncclCommDestroy", handle)) return code;
  const auto communicator = find("ncclCommDestroy", handle);
  if (communicator == nullptr) return kInvalidArgument;
  {
    const std::lock_guard<std::mutex> lock(communicator->mutex);
    const Progress progress = communicator->progress;
    if (progress == Progress::kJoining || progress == Progress::kLaunching) {
      return too_early("ncclCommDestroy", *communicator);
    }
    if (!communicator->finalized.exchange(true)) communicator->finalize();
  }
  const int code = communicator->settle();
  communicator->leave();
  return code;
}

// Of whatever communicator of this process: as NCCL's, it is for people.
FAKE_EXPORT const char* ncclGetLastError(void*) {
  static thread_local std::string text;
  text = last_error();
  return text.c_str();
}

FAKE_EXPORT const char* ncclGetErrorString(int code) {
  switch (code) {
    case kSuccess:
      return "no error";
    case kUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case kSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case kInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case kInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case kInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case kRemoteError:
      return "remote process exited or there was a network error";
    case kInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

FAKE_EXPORT int ncclCommCount(void* handle, int* count) {
  if (const int code = admit("ncclCommCount")) return code;
  const auto communicator = find("ncclCommCount", handle);
  if (communicator == nullptr) return kInvalidArgument;
  if (count == nullptr) return fail(kInvalidArgument, "ncclCommCount: a null pointer");
  *count = communicator->size;
  return kSuccess;
}

FAKE_EXPORT int ncclCommUserRank(void* handle, int* rank) {
  if (const int code = admit("ncclCommUserRank")) return code;
  const auto communicator = find("ncclCommUserRank", handle);
  if (communicator == nullptr) return kInvalidArgument;
  if (rank == nullptr) return fail(kInvalidArgument, "ncclCommUserRank: a null pointer");
  *rank = communicator->rank;
  return kSuccess;
}

}  // namespace fake_nccl
