// The constants that MPItrampoline reads: all as 64 bits, of which it takes as many as it needs.

#include "mpi/names.h"
#include "mpi/values.h"

// <cstdio>, which a header of the standard library may bring along, has macros of these names of the list.
#undef SEEK_SET
#undef SEEK_CUR
#undef SEEK_END

#define DDL_MPI_VALUE(name, value) extern "C" DDL_MPI_EXPORT const int64_t MPIABI_##name = (value);

DDL_MPI_VALUE(SUCCESS, ddl::mpi::kSuccess)
DDL_MPI_VALUE(UNDEFINED, ddl::mpi::kUndefined)
DDL_MPI_VALUE(COMM_WORLD, ddl::mpi::kWorld)
DDL_MPI_VALUE(IN_PLACE, ddl::mpi::kInPlace)
DDL_MPI_VALUE(THREAD_SINGLE, 0)
DDL_MPI_VALUE(THREAD_FUNNELED, 1)
DDL_MPI_VALUE(THREAD_SERIALIZED, 2)
DDL_MPI_VALUE(THREAD_MULTIPLE, ddl::mpi::kThreadMultiple)

DDL_MPI_VALUE(SUM, ddl::mpi::value_of(ddl::ReduceOp::kSum))
DDL_MPI_VALUE(PROD, ddl::mpi::value_of(ddl::ReduceOp::kProduct))
DDL_MPI_VALUE(MIN, ddl::mpi::value_of(ddl::ReduceOp::kMin))
DDL_MPI_VALUE(MAX, ddl::mpi::value_of(ddl::ReduceOp::kMax))

DDL_MPI_VALUE(INT8_T, ddl::mpi::value_of(ddl::DType::kInt8))
DDL_MPI_VALUE(INT16_T, ddl::mpi::value_of(ddl::DType::kInt16))
DDL_MPI_VALUE(INT32_T, ddl::mpi::value_of(ddl::DType::kInt32))
DDL_MPI_VALUE(INT64_T, ddl::mpi::value_of(ddl::DType::kInt64))
DDL_MPI_VALUE(UINT8_T, ddl::mpi::value_of(ddl::DType::kUInt8))
DDL_MPI_VALUE(UINT16_T, ddl::mpi::value_of(ddl::DType::kUInt16))
DDL_MPI_VALUE(UINT32_T, ddl::mpi::value_of(ddl::DType::kUInt32))
DDL_MPI_VALUE(UINT64_T, ddl::mpi::value_of(ddl::DType::kUInt64))
DDL_MPI_VALUE(BYTE, ddl::mpi::value_of(ddl::DType::kUInt8))
DDL_MPI_VALUE(FLOAT, ddl::mpi::value_of(ddl::DType::kFloat32))
DDL_MPI_VALUE(DOUBLE, ddl::mpi::value_of(ddl::DType::kFloat64))
DDL_MPI_VALUE(C_COMPLEX, ddl::mpi::complex_of(ddl::DType::kFloat32))
DDL_MPI_VALUE(C_DOUBLE_COMPLEX, ddl::mpi::complex_of(ddl::DType::kFloat64))

namespace {

// From here on, as there is nothing to say about them.
enum Unused : int64_t {
  kBeforeUnused = 0x10000,
#define DDL_MPI_NUMBER(name) k_##name,
  DDL_MPI_UNUSED_CONSTANTS(DDL_MPI_NUMBER)
#undef DDL_MPI_NUMBER
};

}  // namespace

#define DDL_MPI_UNUSED(name) DDL_MPI_VALUE(name, k_##name)
DDL_MPI_UNUSED_CONSTANTS(DDL_MPI_UNUSED)

// The interface that is here, and which of its libraries this is: jaxlib's MPItrampoline wants 2.9 or a later 2.
extern "C" {
DDL_MPI_EXPORT extern const int mpiabi_version_major = 2, mpiabi_version_minor = 9, mpiabi_version_patch = 0;
DDL_MPI_EXPORT extern const int mpiwrapper_version_major = 2, mpiwrapper_version_minor = 9,
                                mpiwrapper_version_patch = 0;
}
