// A libcuda.so.1 for tests: the functions of NVIDIA's driver that the program calls, on the CPU. The emulation
// (emulate.hpp) computes the kernels. It is compiled when a module is loaded.
//
// It does each request as late as the driver may: work waits in its stream until a call waits for it, or asks for the
// third time whether it is done. So a buffer that is changed too early, or read too early, causes a failure. And it is
// as strict as the driver may be. It refuses a thread whose context is not set, a destroyed handle, a copy beyond a
// memory or from memory that is not pinned, shared memory that was not requested, and a call that a capture forbids.
//
// The environment describes the device: LLT_DRIVER_MODULES (a file with the hash of each module's PTX, the path of its
// library, and the command that compiles it), LLT_DRIVER_EMULATOR (the folder in which the command runs),
// LLT_DRIVER_BYTES (of memory), LLT_DRIVER_MEMORIES (number of successful allocations), LLT_DRIVER_LOST (number of
// kernels before the device is lost), LLT_DRIVER_NO_CAPTURE (kernels that may start early are not captured, as by
// drivers before CUDA 12.3; with `all`, no kernel is), LLT_DRIVER_NO_EARLY (kernels that may start early are not
// launched either), LLT_DRIVER_IDLE (kernels with this prefix do nothing; with `all`, all of them), LLT_DRIVER_VERSION
// (of CUDA, times 1000), LLT_DRIVER_DEVICES (number of devices), LLT_DRIVER_CAPABILITY (the compute capability, times
// 10), LLT_DRIVER_LOG (a file for the list of requests, written at the end).
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

enum Result {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
    INVALID_PTX = 218, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901,
};

using Address = unsigned long long;
using Work = std::function<Result()>;
using Launch = int (*)(const char*, const unsigned*, const unsigned*, unsigned, void**, void*, void*);
using Arguments = int (*)(const char*, unsigned*);

struct Stream;
struct Event {
    Stream* stream = nullptr;  // the stream in which it was recorded
    int asked = 0;             // number of queries since then whether it is done
    uint64_t number = 0;       // number of the last work before it
};
struct Module {
    Launch launch;
    Arguments arguments;
};
struct Function {
    Module* module;
    std::string name;
    unsigned shared = 48 << 10;  // bytes of it that a launch may request
};
struct Graph {
    std::vector<Work> work;
};
struct Stream {
    std::deque<Work> waiting;
    uint64_t asked = 0, done = 0;
    bool captures = false, invalid = false;
    Graph taken;
};

// From CUDA's cuda.h.
struct Attribute {
    int id;
    char unused[4];
    union {
        char all[64];
        int early;
    };
};
struct Config {
    unsigned grid[3], block[3], shared;
    Stream* stream;
    Attribute* attributes;
    unsigned count;
};
constexpr int MAY_BEGIN_EARLY = 6, MOST_SHARED = 227 << 10;

std::recursive_mutex all;
bool started;
bool lost;
int context;  // its address is the handle
thread_local const void* current;
std::map<Address, size_t> memories;
std::map<char*, size_t> pinned;
std::set<void*> handles;
std::vector<std::unique_ptr<Module>> modules;
std::set<Stream*> streams;
size_t used;
long kernels_left = -1;
long memories_left = 0;
unsigned long launches, graphs, written, brought;

const char* word(const char* name) {
    const char* value = getenv(name);
    return value ? value : "";
}
size_t total() { return strtoull(word("LLT_DRIVER_BYTES"), nullptr, 10); }

[[noreturn]] void fail(const char* why) {
    fprintf(stderr, "emulated driver: %s\n", why);
    abort();
}

void say() {
    if (*word("LLT_DRIVER_LOG") == 0) return;
    std::ofstream log(word("LLT_DRIVER_LOG"));
    log << "launches " << launches << "\ngraphs " << graphs << "\nwritten " << written << "\nbrought " << brought << "\n";
}

// The beginning of every call.
#define ENTER()                                               \
    std::lock_guard<std::recursive_mutex> guard(all);         \
    if (!started) return NOT_INITIALIZED;                     \
    if (current != &context) return INVALID_CONTEXT;          \
    if (lost) return LAUNCH_FAILED;

template <class T>
bool known(T* handle) {
    return handles.count(handle) != 0;
}
template <class T>
T* made(T* handle) {
    handles.insert(handle);
    return handle;
}

// Whether these bytes are inside one memory.
template <class Key>
bool inside(const std::map<Key, size_t>& memories, Key at, size_t bytes) {
    auto next = memories.upper_bound(at);
    if (next == memories.begin()) return false;
    --next;
    return at + bytes <= next->first + next->second;
}

// Does the waiting work, up to this number.
Result work(Stream& stream, uint64_t number) {
    while (stream.done < number && !stream.waiting.empty()) {
        Work next = std::move(stream.waiting.front());
        stream.waiting.pop_front();
        stream.done++;
        if (lost || next() != SUCCESS) lost = true;
    }
    return lost ? LAUNCH_FAILED : SUCCESS;
}

Result ask(Stream* stream, Work what) {
    if (!known(stream)) return INVALID_HANDLE;
    if (stream->captures) {
        stream->taken.work.push_back(std::move(what));
    } else {
        stream->waiting.push_back(std::move(what)), stream->asked++;
    }
    return SUCCESS;
}

// Calls that are forbidden during a capture, because they cannot be answered.
bool forbidden(Stream& stream) {
    if (stream.captures) stream.invalid = true;
    return stream.captures;
}

uint64_t hash(const char* text) {
    uint64_t hash = 0xcbf29ce484222325;
    for (; *text; text++) hash = (hash ^ static_cast<unsigned char>(*text)) * 0x100000001b3;
    return hash;
}

// The module of this PTX. It is compiled if it was not compiled before.
std::unique_ptr<Module> loaded(const char* ptx) {
    std::ostringstream name;
    name << std::hex << hash(ptx);
    std::ifstream table(word("LLT_DRIVER_MODULES"));
    for (std::string line; std::getline(table, line);) {
        if (line.compare(0, name.str().size() + 1, name.str() + "\t") != 0) continue;
        size_t command_at = line.find('\t', name.str().size() + 1);
        std::string path = line.substr(name.str().size() + 1, command_at - name.str().size() - 1);
        std::string fresh = path + "." + std::to_string(getpid());
        if (access(path.c_str(), R_OK) != 0) {
            std::string command = "cd '" + std::string(word("LLT_DRIVER_EMULATOR")) + "' && " +
                                  line.substr(command_at + 1) + " -o '" + fresh + "' && mv '" + fresh + "' '" + path + "'";
            if (system(command.c_str()) != 0) fail("a module does not compile");
        }
        void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!library) fail(dlerror());
        return std::unique_ptr<Module>(new Module{reinterpret_cast<Launch>(dlsym(library, "llt_launch")),
                                                  reinterpret_cast<Arguments>(dlsym(library, "llt_arguments"))});
    }
    return nullptr;
}

}  // namespace

extern "C" {

Result cuInit(unsigned) {
    started = true;
    if (*word("LLT_DRIVER_LOST")) kernels_left = atol(word("LLT_DRIVER_LOST"));
    memories_left = atol(word("LLT_DRIVER_MEMORIES"));
    atexit(say);
    return SUCCESS;
}
// The oldest version that the kernels allow, so that no NVRTC of this machine is used.
Result cuDriverGetVersion(int* version) {
    *version = *word("LLT_DRIVER_VERSION") ? atoi(word("LLT_DRIVER_VERSION")) : 12000;
    return SUCCESS;
}
int devices() { return *word("LLT_DRIVER_DEVICES") ? atoi(word("LLT_DRIVER_DEVICES")) : 1; }
Result cuDeviceGetCount(int* count) { return *count = devices(), SUCCESS; }
Result cuDeviceGet(int* device, int ordinal) { return *device = ordinal, ordinal < devices() ? SUCCESS : INVALID_DEVICE; }
Result cuDeviceGetName(char* name, int length, int) { return snprintf(name, length, "an emulated device"), SUCCESS; }
Result cuDeviceGetAttribute(int* value, int attribute, int) {
    const int capability = *word("LLT_DRIVER_CAPABILITY") ? atoi(word("LLT_DRIVER_CAPABILITY")) : 90;
    switch (attribute) {
        case 16: *value = 4; return SUCCESS;  // multiprocessors
        case 75: *value = capability / 10; return SUCCESS;
        case 76: *value = capability % 10; return SUCCESS;
        case 97: *value = MOST_SHARED; return SUCCESS;  // the maximum shared memory of a block
        default: return INVALID_VALUE;
    }
}
Result cuDevicePrimaryCtxRetain(void** at, int) { return *at = &context, SUCCESS; }
Result cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
Result cuCtxSetCurrent(const void* asked) {
    if (asked != &context) return INVALID_CONTEXT;
    return current = asked, SUCCESS;
}

Result cuStreamCreate(Stream** stream, unsigned flags) {
    ENTER();
    if (flags != 1) fail("a stream waits for the default one");
    streams.insert(*stream = made(new Stream));
    return SUCCESS;
}
Result cuStreamDestroy_v2(Stream* stream) {
    ENTER();
    if (!known(stream)) return INVALID_HANDLE;
    handles.erase(stream), streams.erase(stream);
    delete stream;
    return SUCCESS;
}
Result cuStreamSynchronize(Stream* stream) {
    ENTER();
    if (!known(stream)) return INVALID_HANDLE;
    if (forbidden(*stream)) return CAPTURE_UNSUPPORTED;
    return work(*stream, stream->asked);
}

Result cuEventCreate(Event** event, unsigned) {
    ENTER();
    return *event = made(new Event), SUCCESS;
}
Result cuEventRecord(Event* event, Stream* stream) {
    ENTER();
    if (!known(event) || !known(stream)) return INVALID_HANDLE;
    if (forbidden(*stream)) return CAPTURE_UNSUPPORTED;
    event->stream = stream, event->asked = 0, event->number = stream->asked;
    return SUCCESS;
}
// Work that is launched on the stream from here on begins when the work before the event is done.
Result cuStreamWaitEvent(Stream* stream, Event* event, unsigned flags) {
    ENTER();
    if (!known(stream) || !known(event) || flags != 0) return INVALID_VALUE;
    if (!event->stream) return SUCCESS;
    if (forbidden(*event->stream)) return CAPTURE_UNSUPPORTED;
    return work(*event->stream, event->number);
}
Result cuEventQuery(Event* event) {
    ENTER();
    if (!known(event)) return INVALID_HANDLE;
    Stream* stream = event->stream;
    if (!stream || stream->done >= event->number) return SUCCESS;
    if (forbidden(*stream)) return CAPTURE_UNSUPPORTED;
    return ++event->asked < 3 ? NOT_READY : work(*stream, event->number);
}
Result cuEventSynchronize(Event* event) {
    ENTER();
    if (!known(event)) return INVALID_HANDLE;
    if (!event->stream) return SUCCESS;
    if (forbidden(*event->stream)) return CAPTURE_UNSUPPORTED;
    return work(*event->stream, event->number);
}
Result cuEventElapsedTime(float* milliseconds, Event* from, Event* to) {
    ENTER();
    if (!known(from) || !known(to) || !from->stream || !to->stream) return INVALID_HANDLE;
    if (to->stream->done < to->number) return NOT_READY;
    return *milliseconds = 1.0f, SUCCESS;
}
Result cuEventDestroy_v2(Event* event) {
    ENTER();
    if (!known(event)) return INVALID_HANDLE;
    handles.erase(event);
    delete event;
    return SUCCESS;
}

Result cuMemGetInfo_v2(size_t* free, size_t* all_of_it) {
    ENTER();
    return *free = total() - used, *all_of_it = total(), SUCCESS;
}
Result cuMemAlloc_v2(Address* at, size_t bytes) {
    ENTER();
    if (bytes == 0) return INVALID_VALUE;
    if (bytes > total() - used || *word("LLT_DRIVER_MEMORIES") && memories_left-- <= 0) return OUT_OF_MEMORY;
    size_t room = (bytes + 511) / 512 * 512;
    void* memory = aligned_alloc(512, room);
    memset(memory, 0xff, room);  // NaN
    *at = reinterpret_cast<Address>(memory);
    memories[*at] = bytes, used += bytes;
    return SUCCESS;
}
Result cuMemFree_v2(Address at) {
    ENTER();
    auto memory = memories.find(at);
    if (memory == memories.end()) return INVALID_VALUE;
    // No requested work may need it any more.
    Result result = SUCCESS;
    for (Stream* stream : streams) result = work(*stream, stream->asked);
    used -= memory->second;
    memories.erase(memory);
    free(reinterpret_cast<void*>(at));
    return result;
}
Result cuMemAllocHost_v2(void** at, size_t bytes) {
    ENTER();
    char* memory = static_cast<char*>(malloc(bytes));
    pinned[memory] = bytes;
    return *at = memory, SUCCESS;
}
Result cuMemFreeHost(void* at) {
    ENTER();
    if (pinned.erase(static_cast<char*>(at)) == 0) return INVALID_VALUE;
    return free(at), SUCCESS;
}

Result cuMemsetD8Async(Address at, unsigned char value, size_t bytes, Stream* stream) {
    ENTER();
    if (!inside(memories, at, bytes)) return INVALID_VALUE;
    return ask(stream, [=] { return memset(reinterpret_cast<void*>(at), value, bytes), SUCCESS; });
}
Result cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, Stream* stream) {
    ENTER();
    if (!inside(pinned, static_cast<char*>(const_cast<void*>(from)), bytes)) fail("a copy from memory that is not pinned waits");
    if (!inside(memories, to, bytes)) return INVALID_VALUE;
    written += bytes;
    return ask(stream, [=] { return memcpy(reinterpret_cast<void*>(to), from, bytes), SUCCESS; });
}
Result cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, Stream* stream) {
    ENTER();
    if (!inside(pinned, static_cast<char*>(to), bytes)) fail("a copy to memory that is not pinned waits");
    if (!inside(memories, from, bytes)) return INVALID_VALUE;
    brought += bytes;
    return ask(stream, [=] { return memcpy(to, reinterpret_cast<void*>(from), bytes), SUCCESS; });
}
Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Stream* stream) {
    ENTER();
    if (!inside(memories, from, bytes) || !inside(memories, to, bytes)) return INVALID_VALUE;
    return ask(stream, [=] { return memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes), SUCCESS; });
}

Result cuModuleLoadData(Module** module, const void* image) {
    ENTER();
    std::unique_ptr<Module> found = loaded(static_cast<const char*>(image));
    if (!found) return INVALID_PTX;
    modules.push_back(std::move(found));
    return *module = made(modules.back().get()), SUCCESS;
}
// NVRTC requests functions that no manual names, to cache its compiled code.
Result cuGetExportTable(const void** table, const void*) { return *table = nullptr, NOT_FOUND; }
Result cuModuleUnload(Module* module) {
    ENTER();
    if (!known(module)) return INVALID_HANDLE;
    return handles.erase(module), SUCCESS;
}
Result cuModuleGetFunction(Function** function, Module* module, const char* name) {
    ENTER();
    unsigned bytes[64];
    if (!known(module)) return INVALID_HANDLE;
    if (module->arguments(name, bytes) < 0) return NOT_FOUND;
    return *function = made(new Function{module, name}), SUCCESS;
}
Result cuFuncSetAttribute(Function* function, int attribute, int value) {
    ENTER();
    if (!known(function)) return INVALID_HANDLE;
    if (attribute != 8 || value > MOST_SHARED) return INVALID_VALUE;  // the maximum dynamic shared memory
    return function->shared = value, SUCCESS;
}
Result cuLaunchKernelEx(const Config* config, Function* function, void** values, void** extra) {
    ENTER();
    if (!known(function) || !known(config->stream)) return INVALID_HANDLE;
    const unsigned *grid = config->grid, *block = config->block;
    unsigned threads = block[0] * block[1] * block[2];
    if (extra || threads == 0 || threads > 1024 || config->shared > function->shared) return INVALID_VALUE;
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[1] > 65535 || grid[2] > 65535) return INVALID_VALUE;
    for (unsigned i = 0; i < config->count; i++) {
        if (config->attributes[i].id != MAY_BEGIN_EARLY || config->attributes[i].early != 1) return INVALID_VALUE;
    }
    if (config->count > 0 && *word("LLT_DRIVER_NO_EARLY")) return INVALID_VALUE;
    const bool none = strcmp(word("LLT_DRIVER_NO_CAPTURE"), "all") == 0;
    if (config->stream->captures && (none || config->count > 0 && *word("LLT_DRIVER_NO_CAPTURE"))) {
        config->stream->invalid = true;
        return CAPTURE_UNSUPPORTED;
    }
    // The values are read now, and used later.
    unsigned bytes[64];
    int count = function->module->arguments(function->name.c_str(), bytes);
    std::vector<std::vector<uint64_t>> kept;
    for (int i = 0; i < count; i++) {
        kept.emplace_back((bytes[i] + 7) / 8);
        memcpy(kept.back().data(), values[i], bytes[i]);
    }
    Config same = *config;
    return ask(config->stream, [=]() mutable {
        if (kernels_left == 0) return LAUNCH_FAILED;
        if (kernels_left > 0) kernels_left--;
        launches++;
        const std::string idle = word("LLT_DRIVER_IDLE");
        if (idle == "all" || (!idle.empty() && function->name.rfind(idle, 0) == 0)) return SUCCESS;
        std::vector<void*> values;
        for (std::vector<uint64_t>& value : kept) values.push_back(value.data());
        int code = function->module->launch(function->name.c_str(), same.grid, same.block, same.shared, values.data(), nullptr, nullptr);
        return code == 0 ? SUCCESS : LAUNCH_FAILED;
    });
}

Result cuStreamBeginCapture_v2(Stream* stream, int) {
    ENTER();
    if (!known(stream)) return INVALID_HANDLE;
    if (stream->captures) return INVALID_VALUE;
    stream->captures = true, stream->invalid = false, stream->taken = Graph();
    return SUCCESS;
}
Result cuStreamEndCapture(Stream* stream, Graph** graph) {
    ENTER();
    if (!known(stream) || !stream->captures) return INVALID_VALUE;
    stream->captures = false, *graph = nullptr;
    if (stream->invalid) return CAPTURE_INVALIDATED;
    return *graph = made(new Graph(std::move(stream->taken))), SUCCESS;
}
Result cuGraphInstantiateWithFlags(Graph** ready, Graph* graph, unsigned long long flags) {
    ENTER();
    if (!known(graph) || flags != 0) return INVALID_VALUE;
    return *ready = made(new Graph(*graph)), SUCCESS;
}
Result cuGraphDestroy(Graph* graph) {
    ENTER();
    if (handles.erase(graph) == 0) return INVALID_VALUE;
    delete graph;
    return SUCCESS;
}
Result cuGraphUpload(Graph* graph, Stream* stream) {
    ENTER();
    return known(graph) && known(stream) ? SUCCESS : INVALID_VALUE;
}
Result cuGraphLaunch(Graph* graph, Stream* stream) {
    ENTER();
    if (!known(graph)) return INVALID_VALUE;
    graphs++;
    for (const Work& work : graph->work) {
        if (Result result = ask(stream, work)) return result;
    }
    return SUCCESS;
}
Result cuGraphExecDestroy(Graph* graph) {
    ENTER();
    if (handles.erase(graph) == 0) return INVALID_VALUE;
    delete graph;
    return SUCCESS;
}

}  // extern "C"
