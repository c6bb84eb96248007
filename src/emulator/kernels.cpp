// One file of kernels (-DKERNELS='"rms_norm.cu"'), and the table of its kernels. To build a library that runs them on
// the CPU (see emulate.hpp):
//
//     c++ $(cat emulate.options) -fPIC -c emulate.cpp -o emulate.o
//     c++ $(cat emulate.options) -fPIC -shared -DKERNELS='"rms_norm.cu"' -DPRECISION=F32 -I ../kernels kernels.cpp emulate.o
#include "emulate.hpp"

#include KERNELS

namespace emulated {
namespace {

// Count<N>::Type has the numbers 0 to N - 1. (std::index_sequence would need a header of the C++ library.)
template <size_t... I>
struct Numbers {};
template <size_t N, size_t... I>
struct Count : Count<N - 1, N - 1, I...> {};
template <size_t... I>
struct Count<0, I...> {
    using Type = Numbers<I...>;
};

// Calls `kernel` with the arguments that `args` points to, like cuLaunchKernel.
template <class... Args, size_t... I>
void call(void (*kernel)(Args...), void** args, Numbers<I...>) {
    kernel(*static_cast<Args*>(args[I])...);
}
template <class... Args>
void call(void (*kernel)(Args...), void** args) {
    call(kernel, args, typename Count<sizeof...(Args)>::Type());
}

// Size of each argument of `kernel` in bytes, and their number.
template <class... Args>
unsigned sizes(void (*)(Args...), unsigned* bytes) {
    ((*bytes++ = sizeof(Args)), ...);
    return sizeof...(Args);
}

}  // namespace

#define ENTRY(name)                                                  \
    {#name, [](void* args) { call(name, static_cast<void**>(args)); }, \
     [](unsigned* bytes) { return sizes(name, bytes); }},
const Kernel KERNELS_HERE[] = {KERNELS_OF_THIS_FILE(ENTRY)};
const size_t NUMBER_OF_KERNELS = sizeof KERNELS_HERE / sizeof *KERNELS_HERE;

}  // namespace emulated
