#include "streams.hpp"

#include <ctime>

#include <algorithm>
#include <atomic>
#include <vector>

#include "books.hpp"
#include "context.hpp"
#include "values.hpp"

namespace {
// Several streams may take part in a capture: those that wait for an event of one that does.
struct Capture {
  unsigned long long id;
  uint64_t ns = 0;
};
struct Stream {
  int device = 0;
  int priority = 0;
  std::atomic<uint64_t> until{0};
  Capture* capture = nullptr;
};
struct Event {
  std::atomic<uint64_t> at{0};
  bool recorded = false;
  unsigned flags = 0;
  Capture* capture = nullptr;
};
struct Graph {
  uint64_t ns;
};

Stream defaults[MOST_GPUS];
std::vector<Stream*>& made() {
  static auto* streams = new std::vector<Stream*>;
  return *streams;
}
std::atomic<int> captures{0};

uint64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000ull + time.tv_nsec;
}

void sleep_until(uint64_t moment) {
  for (uint64_t time; (time = now()) < moment;) {
    timespec rest{(time_t)((moment - time) / 1000000000), (long)((moment - time) % 1000000000)};
    nanosleep(&rest, nullptr);
  }
}

bool is_default(cudaStream_t stream) { return (uintptr_t)stream <= 2; }  // null, legacy, per thread

Stream& of(cudaStream_t stream) {
  if (!is_default(stream)) return *(Stream*)stream;
  defaults[context::device].device = context::device;
  return defaults[context::device];
}

void raise_to(std::atomic<uint64_t>& moment, uint64_t at_least) {
  if (moment < at_least) moment = at_least;
}

cudaError_t create(cudaStream_t* stream, int priority) {
  RETURN_UNLESS_READY;
  std::lock_guard<std::mutex> guard(context::lock);
  context::open(context::device);
  auto* created = new Stream;
  created->device = context::device;
  created->priority = priority;
  made().push_back(created);
  *stream = (cudaStream_t)created;
  return cudaSuccess;
}
}  // namespace

void streams::spend(cudaStream_t stream, double ns) {
  Stream& worker = of(stream);
  auto scaled = (uint64_t)(ns * machine::time_scale());
  if (worker.capture) {
    worker.capture->ns += scaled;
    return;
  }
  worker.until = std::max<uint64_t>(now(), worker.until) + scaled;
  books::add_busy(scaled);
}

void streams::wait(cudaStream_t stream) {
  if (!of(stream).capture) sleep_until(of(stream).until);
}

void streams::wait_for_device(int device) {
  uint64_t moment = defaults[device].until;
  {
    std::lock_guard<std::mutex> guard(context::lock);
    for (auto* stream : made())
      if (stream->device == device) moment = std::max<uint64_t>(moment, stream->until);
  }
  sleep_until(moment);
}

int streams::device_of(cudaStream_t stream) { return of(stream).device; }

API cudaError_t cudaStreamCreate(cudaStream_t* stream) { return create(stream, 0); }
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return create(stream, 0); }
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) { return create(stream, priority); }

API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  RETURN_UNLESS_READY;
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  RETURN_UNLESS_READY;
  *priority = of(stream).priority;
  return cudaSuccess;
}

API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  RETURN_UNLESS_READY;
  if (of(stream).capture) return context::failed(cudaErrorStreamCaptureUnsupported);
  streams::wait(stream);
  return cudaSuccess;
}

API cudaError_t cudaStreamQuery(cudaStream_t stream) {
  RETURN_UNLESS_READY;
  if (of(stream).capture) return context::failed(cudaErrorStreamCaptureUnsupported);
  return now() >= of(stream).until ? cudaSuccess : cudaErrorNotReady;
}

API cudaError_t cudaDeviceSynchronize() {
  RETURN_UNLESS_READY;
  if (captures) return context::failed(cudaErrorStreamCaptureUnsupported);
  streams::wait_for_device(context::device);
  return cudaSuccess;
}

// What the host does in a stream's order is done at once.
API cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) {
  RETURN_UNLESS_READY;
  function(data);
  return cudaSuccess;
}

API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned) {
  RETURN_UNLESS_READY;
  callback(stream, cudaSuccess, data);
  return cudaSuccess;
}

// ---------------------------------------------------------------------------------------------------------- events

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  RETURN_UNLESS_READY;
  context::open(context::device);
  auto* created = new Event;
  created->flags = flags;
  *event = (cudaEvent_t)created;
  return cudaSuccess;
}

API cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

API cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete (Event*)event;
  return cudaSuccess;
}

API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  RETURN_UNLESS_READY;
  auto& recorded = *(Event*)event;
  recorded.recorded = true;
  recorded.capture = of(stream).capture;
  recorded.at = recorded.capture ? 0 : std::max<uint64_t>(now(), of(stream).until);
  return cudaSuccess;
}

API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) { return cudaEventRecord(event, stream); }

API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  RETURN_UNLESS_READY;
  auto& awaited = *(Event*)event;
  if (awaited.capture)
    of(stream).capture = awaited.capture;
  else if (!of(stream).capture)
    raise_to(of(stream).until, awaited.at);
  return cudaSuccess;
}

API cudaError_t cudaEventQuery(cudaEvent_t event) {
  RETURN_UNLESS_READY;
  if (((Event*)event)->capture) return context::failed(cudaErrorStreamCaptureUnsupported);
  return now() >= ((Event*)event)->at ? cudaSuccess : cudaErrorNotReady;
}

API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  RETURN_UNLESS_READY;
  if (((Event*)event)->capture) return context::failed(cudaErrorStreamCaptureUnsupported);
  sleep_until(((Event*)event)->at);
  return cudaSuccess;
}

API cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  RETURN_UNLESS_READY;
  auto &first = *(Event*)begin, &second = *(Event*)end;
  for (auto* event : {&first, &second})
    if (!event->recorded || event->flags & cudaEventDisableTiming) return context::failed(cudaErrorInvalidResourceHandle);
  if (now() < first.at || now() < second.at) return cudaErrorNotReady;
  *ms = ((double)second.at - (double)first.at) / 1e6;
  return cudaSuccess;
}

// ---------------------------------------------------------------------------------------------------------- graphs
// A graph is the time that its work takes.

API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  RETURN_UNLESS_READY;
  static std::atomic<unsigned long long> next{1};
  if (is_default(stream)) return context::failed(cudaErrorStreamCaptureUnsupported);
  if (values::refuses("a graph")) return context::failed(cudaErrorNotSupported);
  of(stream).capture = new Capture{next++};
  captures++;
  return cudaSuccess;
}

API cudaError_t cudaStreamBeginCaptureToGraph(
    cudaStream_t stream, cudaGraph_t, const cudaGraphNode_t*, const cudaGraphEdgeData*, size_t, cudaStreamCaptureMode mode) {
  return cudaStreamBeginCapture(stream, mode);
}

API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  RETURN_UNLESS_READY;
  Capture* ended = of(stream).capture;
  if (!ended) return context::failed(cudaErrorInvalidValue);
  std::lock_guard<std::mutex> guard(context::lock);
  for (auto* each : made())
    if (each->capture == ended) each->capture = nullptr;
  captures--;
  *graph = (cudaGraph_t) new Graph{ended->ns};  // events still know the capture: it stays
  return cudaSuccess;
}

API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  RETURN_UNLESS_READY;
  *status = of(stream).capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

API cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
    const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges, size_t* count) {
  RETURN_UNLESS_READY;
  Capture* capture = of(stream).capture;
  *status = capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id) *id = capture ? capture->id : 0;
  if (graph) *graph = (cudaGraph_t)capture;
  if (nodes) *nodes = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}

API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  static thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  std::swap(*mode, current);
  return cudaSuccess;
}

API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = (cudaGraphExec_t) new Graph(*(Graph*)graph);
  return cudaSuccess;
}

API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}

API cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  RETURN_UNLESS_READY;
  streams::spend(stream, ((Graph*)executable)->ns * 0.8 / std::max(machine::time_scale(), 1e-9));
  return cudaSuccess;
}

API cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* count) {
  *count = 1;
  return cudaSuccess;
}

API cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*, size_t* count) {
  *count = 0;
  return cudaSuccess;
}

API cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle*, cudaGraph_t, unsigned, unsigned) {
  return context::failed(cudaErrorNotSupported);
}

API cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void*, cudaHostFn_t, unsigned, unsigned) {
  *object = (cudaUserObject_t)1;
  return cudaSuccess;
}
