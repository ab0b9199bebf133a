// Streams, events and CUDA graphs. Refuses the calls that CUDA forbids during a capture
// (cudaThreadExchangeStreamCaptureMode in CUDA's runtime API). Nothing runs, so a stream is always idle.
#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <thread>

#include "device.h"

using namespace made_up;

namespace {

struct Stream {
    int priority;
};
struct Graph {
    size_t nodes = 0;
    unsigned long long id = 0;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    std::thread::id thread;  // the thread that began the capture
    bool broken = false;     // true after a forbidden call
};
struct Event {
    Graph* graph = nullptr;  // the graph whose capture contains the event
};

std::mutex lock;
// Streams that take part in a capture: its first stream, and streams that wait for an event of it.
std::map<cudaStream_t, Graph*>& captures() {
    static auto* all = new std::map<cudaStream_t, Graph*>;
    return *all;
}
Graph* capture_of(cudaStream_t stream) {
    std::lock_guard<std::mutex> guard(lock);
    auto found = captures().find(stream);
    return found == captures().end() ? nullptr : found->second;
}
cudaStreamCaptureStatus status_of(const Graph* graph) {
    return !graph ? cudaStreamCaptureStatusNone : graph->broken ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}

int priority_of(cudaStream_t stream) { return (size_t)stream < 0x10 ? 0 : ((Stream*)stream)->priority; }

thread_local cudaStreamCaptureMode interaction = cudaStreamCaptureModeGlobal;

}  // namespace

namespace made_up {

void note_in_capture(void* stream) {
    if (Graph* graph = capture_of((cudaStream_t)stream)) graph->nodes++;
}

cudaError_t captures_allow(const char* what, bool waits) {
    std::lock_guard<std::mutex> guard(lock);
    bool forbidden = false;
    for (auto& [stream, graph] : captures()) {
        const bool own = graph->thread == std::this_thread::get_id();
        const bool forbids = own ? graph->mode != cudaStreamCaptureModeRelaxed
                                 : graph->mode == cudaStreamCaptureModeGlobal && interaction == cudaStreamCaptureModeGlobal;
        if (waits || (forbids && interaction != cudaStreamCaptureModeRelaxed)) forbidden = graph->broken = true;
    }
    if (!forbidden) return cudaSuccess;
    record("capture-broken", ", \"by\": " + quoted(what));
    return cudaErrorStreamCaptureUnsupported;
}

}  // namespace made_up

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
    *stream = (cudaStream_t) new Stream{priority};
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { delete (Stream*)stream; return cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) { *priority = priority_of(stream); return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (Graph* graph = capture_of(stream)) {  // as in CUDA, waiting for a captured stream breaks the capture
        graph->broken = true;
        record("capture-broken", ", \"by\": \"cudaStreamSynchronize\"");
        return cudaErrorStreamCaptureUnsupported;
    }
    return !visible().empty() && visible()[current()].lost() ? cudaErrorDevicesUnavailable : cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    if (Graph* graph = ((Event*)event)->graph) {
        std::lock_guard<std::mutex> guard(lock);
        captures()[stream] = graph;
    }
    return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned) {
    callback(stream, cudaSuccess, data);
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) { function(data); return cudaSuccess; }

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    *status = status_of(capture_of(stream));
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** nodes,
    const cudaGraphEdgeData** edges, size_t* count
) {
    Graph* found = capture_of(stream);
    *status = status_of(found);
    if (id) *id = found ? found->id : 0;
    if (graph) *graph = (cudaGraph_t)found;
    if (nodes) *nodes = nullptr;
    if (edges) *edges = nullptr;
    if (count) *count = 0;
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    static unsigned long long captured = 0;
    auto* graph = new Graph;
    {
        std::lock_guard<std::mutex> guard(lock);
        if (captures().count(stream)) return cudaErrorIllegalState;
        graph->id = ++captured;
        graph->mode = mode;
        graph->thread = std::this_thread::get_id();
        captures()[stream] = graph;
    }
    record("capture-begin");
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* found) {
    Graph* graph = capture_of(stream);
    if (!graph) return cudaErrorIllegalState;
    {
        std::lock_guard<std::mutex> guard(lock);
        for (auto one = captures().begin(); one != captures().end();) one = one->second == graph ? captures().erase(one) : ++one;
    }
    *found = graph->broken ? nullptr : (cudaGraph_t)graph;
    record("capture-end", ", \"nodes\": " + std::to_string(graph->nodes));
    return graph->broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    std::swap(*mode, interaction);
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
    *made = (cudaGraphExec_t) new Graph(*(Graph*)graph);
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long flags) {
    return cudaGraphInstantiate(made, graph, flags);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
    if (visible()[current()].lost()) return cudaErrorDevicesUnavailable;
    record("graph-launch", ", \"nodes\": " + std::to_string(((Graph*)graph)->nodes));
    return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
    if (nodes) return refuse("a CUDA graph's nodes");
    *count = ((Graph*)graph)->nodes;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { delete (Graph*)graph; return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { delete (Graph*)graph; return cudaSuccess; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { *event = (cudaEvent_t) new Event; return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { delete (Event*)event; return cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
    ((Event*)event)->graph = capture_of(stream);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecordWithFlags(event, stream, 0); }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
    // All times are equal, so a program that compares them keeps its first choice. A compile must not choose in this
    // way.
    if (compiling()) return refuse("a measured time");
    *milliseconds = 1;
    return cudaSuccess;
}

}  // extern "C"
