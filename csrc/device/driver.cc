#include "device/driver.h"

#include <atomic>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/mutex.h"
#include "base/process.h"
#include "device/driver_table.h"

namespace ddl {

namespace {

// Of cuda.h, whose numbers do not change.
constexpr int kSuccess = 0, kOutOfMemory = 2, kDeinitialized = 4, kStub = 34, kUnavailable = 46, kNoDevice = 100;
constexpr int kUncorrectable = 214, kUncorrectableLink = 220, kContained = 226, kNotReady = 600;
constexpr int kFirstSticky = 700, kLastSticky = 719;  // but for these:
constexpr int kAlreadyRegistered = 712, kNotRegistered = 713;
constexpr int kFirstOfMps = 805, kLastOfMps = 810;  // the server by which processes share a GPU has gone, or is full
constexpr int kFirstOfCaptures = 900, kLastOfCaptures = 909, kUnknown = 999;
constexpr unsigned kNonBlocking = 1;     // CU_STREAM_NON_BLOCKING
constexpr unsigned kDisableTiming = 2;   // CU_EVENT_DISABLE_TIMING
constexpr unsigned kPortable = 1;        // CU_MEMHOSTREGISTER_PORTABLE: for all contexts
constexpr unsigned kDeviceMap = 2;       // CU_MEMHOSTREGISTER_DEVICEMAP
constexpr int kOrdinalOfPointer = 9;     // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr int kTypeOfPointer = 2;        // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr unsigned kGreaterOrEqual = 0;  // CU_STREAM_WAIT_VALUE_GEQ
// CU_DEVICE_ATTRIBUTE_…
constexpr int kComputeMode = 20, kCopyEngines = 40, kMajor = 75, kMinor = 76, kHostNumaNode = 134;
constexpr int kLongestName = 256;
constexpr int kCaptureThreadLocal = 1, kCaptureRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_…
constexpr int kCaptureImplicit = 906;                        // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
constexpr const char* kLibrary = "libcuda.so.1";

Mutex loading;
std::string configured DDL_GUARDED_BY(loading);
std::atomic<bool> waiting_on_gpu{false};

DriverUnusable unusable(const std::string& why) { return {why, false}; }

}  // namespace

DriverUnusable::DriverUnusable(const std::string& why, bool missing)
    : Error(ErrorKind::kResourceError,
            "arrays on a GPU cannot be used here: " + why + "; copy the array to the CPU, or see 'ddl doctor'"),
      why_(why),
      missing_(missing) {}

bool DriverError::fatal() const {
  if (code_ == kAlreadyRegistered || code_ == kNotRegistered) return false;
  return code_ == kDeinitialized || code_ == kUnavailable || code_ == kUncorrectable || code_ == kUncorrectableLink ||
         code_ == kContained || code_ == kUnknown || (code_ >= kFirstSticky && code_ <= kLastSticky) ||
         (code_ >= kFirstOfMps && code_ <= kLastOfMps);
}

bool DriverError::passing() const {
  return code_ == kOutOfMemory || (code_ >= kFirstOfCaptures && code_ <= kLastOfCaptures);
}

void Driver::configure(const std::string& library, bool waits_on_gpu) {
  const Lock lock(loading);
  configured = library;
  waiting_on_gpu = waits_on_gpu;
}

bool Driver::waits_on_gpu() { return waiting_on_gpu; }

Driver& Driver::get() {
  static const int owner = process_id();
  if (process_id() != owner) {
    throw Error(ErrorKind::kInvalidState,
                "a forked child cannot use arrays on a GPU: the driver belongs to the parent (pid " +
                    std::to_string(owner) + "); start workers with 'spawn' or 'forkserver'");
  }
  const Lock lock(loading);
  // Never destroyed: at the end of the process, the driver may go before this library does.
  static Driver* driver = nullptr;
  if (driver == nullptr) driver = new Driver(configured.empty() ? kLibrary : configured);
  return *driver;
}

Driver::Driver(const std::string& library) : table_(nullptr) {
  std::unique_ptr<DriverTable> table = load_driver(library);
  table_ = table.get();
  const int code = table->init(0);
  if (code == kStub) throw unusable(library + " is the toolkit's stub, and no driver");
  int count = 0;
  if (code == kNoDevice || (code == kSuccess && table->device_count(&count) == kSuccess && count == 0)) {
    throw unusable("the driver sees no GPU (is CUDA_VISIBLE_DEVICES empty?)");
  }
  if (code != kSuccess) throw unusable(text(code, "cuInit"));
  (void)table.release();  // for good: see `get`
}

std::string Driver::text(int code, const char* call) const {
  const char* name = nullptr;
  if (table_->error_name(code, &name) != kSuccess || name == nullptr) name = "unknown error";
  return std::string(call) + ": " + name + " (" + std::to_string(code) + ")";
}

void Driver::check(int code, const char* call) const {
  if (code != kSuccess) throw DriverError(text(code, call), code);
}

// At the end of the process the driver may be gone, with all that is to be given back.
void Driver::check_end(int code, const char* call) const {
  if (code != kDeinitialized) check(code, call);
}

template <typename Call>
int Driver::relaxed(Call call) const {
  int mode = kCaptureRelaxed;
  check(table_->exchange_capture_mode(&mode), "cuThreadExchangeStreamCaptureMode");
  const int code = call();
  check(table_->exchange_capture_mode(&mode), "cuThreadExchangeStreamCaptureMode");  // as it was
  return code;
}

int Driver::version() const {
  int version = 0;
  return table_->version != nullptr && table_->version(&version) == kSuccess ? version : 0;
}

int Driver::count() const {
  int count = 0;
  check(table_->device_count(&count), "cuDeviceGetCount");
  return count;
}

DeviceDescription Driver::describe(int device) const {
  DeviceDescription described;
  int handle = 0;
  check(table_->device_get(&handle, device), "cuDeviceGet");
  char text[kLongestName] = "";
  if (table_->device_name != nullptr) {
    check(table_->device_name(text, kLongestName, handle), "cuDeviceGetName");
    described.name = text;
  }
  if (table_->device_address != nullptr && table_->device_address(text, kLongestName, handle) == kSuccess) {
    described.pci_address = text;
  }
  size_t bytes = 0;
  if (table_->device_memory != nullptr && table_->device_memory(&bytes, handle) == kSuccess) {
    described.memory_bytes = bytes;
  }
  const auto attribute = [&](int number, int* value) {  // an older driver does not know all of them
    int told = 0;
    const bool known =
        table_->device_attribute != nullptr && table_->device_attribute(&told, number, handle) == kSuccess;
    if (known) *value = told;
  };
  attribute(kMajor, &described.major);
  attribute(kMinor, &described.minor);
  attribute(kCopyEngines, &described.copy_engines);
  attribute(kComputeMode, &described.compute_mode);
  attribute(kHostNumaNode, &described.numa_node);
  return described;
}

DevicePointer Driver::allocate(size_t bytes) const {
  DevicePointer memory = 0;
  if (table_->allocate == nullptr) throw unusable("the driver has no cuMemAlloc_v2");
  check(table_->allocate(&memory, bytes), "cuMemAlloc_v2");
  return memory;
}

void Driver::free(DevicePointer memory) const {
  if (table_->free != nullptr) check_end(table_->free(memory), "cuMemFree_v2");
}

int Driver::device_of(DevicePointer pointer) const {
  int type = 0, ordinal = -1;
  int attributes[] = {kTypeOfPointer, kOrdinalOfPointer};
  void* values[] = {&type, &ordinal};
  check(table_->pointer_attributes(2, attributes, values, pointer), "cuPointerGetAttributes");
  if (type == 0 || ordinal < 0) throw Error(ErrorKind::kInvalidArgument, "the array's memory is on no GPU");
  return ordinal;
}

ContextHandle Driver::context_of(int device) const {
  static Mutex keeping;
  static auto* const kept = new std::map<int, ContextHandle>;
  const Lock lock(keeping);
  const auto known = kept->find(device);
  if (known != kept->end()) return known->second;
  int handle = 0;
  check(table_->device_get(&handle, device), "cuDeviceGet");
  ContextHandle context = nullptr;
  check(table_->context_retain(&context, handle), "cuDevicePrimaryCtxRetain");
  return (*kept)[device] = context;
}

Driver::Current::Current(const Driver& driver, ContextHandle context) : driver_(driver) {
  driver.check(driver.table_->context_push(context), "cuCtxPushCurrent_v2");
}

Driver::Current::~Current() {
  ContextHandle popped = nullptr;
  (void)driver_.table_->context_pop(&popped);  // a driver that has failed cannot do it, and nobody can do more
}

StreamHandle Driver::make_stream() const {
  StreamHandle stream = nullptr;
  check(table_->stream_create(&stream, kNonBlocking, 0), "cuStreamCreateWithPriority");
  return stream;
}

void Driver::destroy_stream(StreamHandle stream) const {
  check_end(table_->stream_destroy(stream), "cuStreamDestroy_v2");
}

bool Driver::capturing(StreamHandle stream) const {
  int status = 0;
  const int code = table_->stream_is_capturing(stream, &status);
  if (code == kCaptureImplicit) return true;  // of the legacy stream, while a stream that it waits for is captured
  check(code, "cuStreamIsCapturing");
  return status != 0;
}

bool Driver::idle(StreamHandle stream) const {
  const int code = relaxed([&] { return table_->stream_query(stream); });
  if (code == kNotReady) return false;
  check(code, "cuStreamQuery");
  return true;
}

void Driver::leave_captures_alone() const {
  int mode = kCaptureThreadLocal;
  check(table_->exchange_capture_mode(&mode), "cuThreadExchangeStreamCaptureMode");
}

EventHandle Driver::make_event() const {
  EventHandle event = nullptr;
  check(table_->event_create(&event, kDisableTiming), "cuEventCreate");
  return event;
}

void Driver::destroy_event(EventHandle event) const { check_end(table_->event_destroy(event), "cuEventDestroy_v2"); }

void Driver::record(EventHandle event, StreamHandle stream) const {
  check(table_->event_record(event, stream), "cuEventRecord");
}

void Driver::wait(StreamHandle stream, EventHandle event) const {
  check(table_->stream_wait_event(stream, event, 0), "cuStreamWaitEvent");
}

bool Driver::ended(EventHandle event) const {
  const int code = table_->event_query(event);
  if (code == kNotReady) return false;
  check(code, "cuEventQuery");
  return true;
}

void Driver::copy_down(void* host, DevicePointer device, size_t bytes, StreamHandle stream) const {
  check(table_->copy_down(host, device, bytes, stream), "cuMemcpyDtoHAsync_v2");
}

void Driver::copy_up(DevicePointer device, const void* host, size_t bytes, StreamHandle stream) const {
  check(table_->copy_up(device, host, bytes, stream), "cuMemcpyHtoDAsync_v2");
}

void Driver::register_memory(void* host, size_t bytes) const {
  check(relaxed([&] { return table_->host_register(host, bytes, kPortable | kDeviceMap); }), "cuMemHostRegister_v2");
}

DevicePointer Driver::address_of(void* host) const {
  DevicePointer address = 0;
  check(table_->host_device_pointer(&address, host, 0), "cuMemHostGetDevicePointer_v2");
  return address;
}

bool Driver::has_words() const { return table_->write_word != nullptr && table_->wait_for_word != nullptr; }

void Driver::write_word(StreamHandle stream, DevicePointer address, uint32_t value) const {
  check(table_->write_word(stream, address, value, 0), "cuStreamWriteValue32_v2");
}

void Driver::wait_for_word(StreamHandle stream, DevicePointer address, uint32_t value) const {
  check(table_->wait_for_word(stream, address, value, kGreaterOrEqual), "cuStreamWaitValue32_v2");
}

void Driver::note_access(const void* host, size_t bytes, bool writes, const char* by) const {
  if (table_->ledger_access != nullptr) table_->ledger_access(host, bytes, writes ? 1 : 0, by);
}

void Driver::note_release(const void* token) const {
  if (table_->ledger_release != nullptr) table_->ledger_release(token);
}

void Driver::note_acquire(const void* token) const {
  if (table_->ledger_acquire != nullptr) table_->ledger_acquire(token);
}

void Driver::note_acquire_at_least(const void* word, uint32_t value) const {
  if (table_->ledger_acquire_at_least != nullptr) table_->ledger_acquire_at_least(word, value);
}

}  // namespace ddl
