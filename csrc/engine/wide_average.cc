#include "engine/wide_average.h"

#include "reduce/widen.h"

namespace ddl {

WideAverage::WideAverage(DType dtype, const void* in, uint64_t in_count, void* out, uint64_t out_count)
    : dtype_(dtype), out_(out), out_count_(out_count), in_place_(out != nullptr && in == out) {
  wide_in_.resize(in_count);
  widen(wide_in_.data(), in, dtype, in_count);
  if (out != nullptr && !in_place_) wide_out_.resize(out_count);
}

void WideAverage::finish() {
  std::call_once(finished_, [this] {
    // An average lies between the numbers, so it fits.
    if (out_ != nullptr) narrow(out_, (in_place_ ? wide_in_ : wide_out_).data(), dtype_, out_count_);
    std::vector<std::int64_t>().swap(wide_in_);
    std::vector<std::int64_t>().swap(wide_out_);
  });
}

}  // namespace ddl
