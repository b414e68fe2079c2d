// A graph of empty tasks as a oneTBB flow graph, with one worker: builds it once and runs it as often as asked.
//
// Arguments: file with the graph, runs. The file is 32-bit words of this machine: tasks, edges, then the edges as
// pairs (before, after). Prints nanoseconds: of the building, of the first run, of the fastest run; then the bytes
// that building took, by the growth of the resident set.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <limits>
#include <vector>

#include <oneapi/tbb/flow_graph.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>

namespace flow = oneapi::tbb::flow;
using Node = flow::continue_node<flow::continue_msg>;

namespace {

std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

std::int64_t resident() {
    std::int64_t size = 0, pages = 0;
    std::ifstream("/proc/self/statm") >> size >> pages;
    return pages * 4096;
}

std::vector<std::uint32_t> words(const char *path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    std::vector<std::uint32_t> result(static_cast<std::size_t>(file.tellg()) / sizeof(std::uint32_t));
    file.seekg(0);
    file.read(reinterpret_cast<char *>(result.data()), static_cast<std::streamsize>(result.size() * sizeof(std::uint32_t)));
    if (!file) {
        std::fprintf(stderr, "%s can not be read\n", path);
        std::exit(1);
    }
    return result;
}

} // namespace

int main(int count, char **arguments) {
    if (count != 3) {
        std::fprintf(stderr, "arguments: file with the graph, runs\n");
        return 2;
    }
    const auto input = words(arguments[1]);
    const std::uint32_t tasks = input.at(0), edges = input.at(1);
    oneapi::tbb::global_control one_worker(oneapi::tbb::global_control::max_allowed_parallelism, 1);
    oneapi::tbb::task_arena arena(1);
    arena.execute([&] {
        // So that no task is optimized away, and every run is seen to have run all.
        std::uint64_t ran = 0;
        const std::int64_t before = resident(), start = now();
        flow::graph graph;
        std::deque<Node> nodes;
        std::vector<std::uint8_t> has_predecessor(tasks, 0);
        for (std::uint32_t task = 0; task < tasks; ++task) {
            nodes.emplace_back(graph, [&ran](const flow::continue_msg &message) {
                ++ran;
                return message;
            });
        }
        for (std::uint32_t edge = 0; edge < edges; ++edge) {
            const std::uint32_t from = input.at(2 + 2 * edge), to = input.at(3 + 2 * edge);
            flow::make_edge(nodes[from], nodes[to]);
            has_predecessor[to] = 1;
        }
        const std::int64_t built = now() - start, bytes = resident() - before;
        std::int64_t first = 0, best = std::numeric_limits<std::int64_t>::max();
        const int runs = std::atoi(arguments[2]);
        for (int run = 0; run < runs; ++run) {
            ran = 0;
            const std::int64_t begin = now();
            for (std::uint32_t task = 0; task < tasks; ++task) {
                if (!has_predecessor[task]) {
                    nodes[task].try_put(flow::continue_msg());
                }
            }
            graph.wait_for_all();
            const std::int64_t took = now() - begin;
            if (ran != tasks) {
                std::fprintf(stderr, "%llu of %u tasks ran\n", static_cast<unsigned long long>(ran), tasks);
                std::exit(1);
            }
            first = run == 0 ? took : first;
            best = took < best ? took : best;
        }
        std::printf("%lld %lld %lld %lld\n", static_cast<long long>(built), static_cast<long long>(first),
                    static_cast<long long>(best), static_cast<long long>(bytes));
    });
    return 0;
}
