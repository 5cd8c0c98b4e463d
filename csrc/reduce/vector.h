// The vector type of one translation unit: the compiler's own, kVectorBytes wide. Included by the half_*.h after they
// have set that width.
#pragma once

namespace ddl {
namespace {

template <typename T>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kVectorBytes)));
};
template <typename T>
using Vec = typename VectorOf<T>::Type;

}  // namespace
}  // namespace ddl
