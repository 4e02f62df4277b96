// A map of N nodes, of which a random half is erased and made again, and strings of all lengths; prints what it holds.
// map N
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <unordered_map>

static uint64_t state = 88172645463325252u;

static uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

int main(int argc, char **argv) {
    uint64_t n = argc == 2 ? strtoull(argv[1], nullptr, 0) : 0, sum = 0;
    std::map<uint64_t, uint64_t> map;
    for (uint64_t i = 0; i < n; i++)
        map[next() % (4 * n)] = i;
    for (auto at = map.begin(); at != map.end();)
        at = at->first % 2 ? map.erase(at) : std::next(at);
    for (uint64_t i = 0; i < n; i++)
        map[next() % (4 * n)] = i;
    for (auto &node : map)
        sum = sum * 31 + node.first + node.second;
    std::unordered_map<uint64_t, std::string> texts;
    for (uint64_t i = 0; i < n / 8; i++)
        texts[next() % n] = std::string(next() % 200, 'a' + next() % 26);
    uint64_t letters = 0;
    for (auto &text : texts)
        letters += text.first ^ text.second.size();
    printf("%zu nodes, %llu; %zu texts, %llu\n", map.size(), (unsigned long long)sum, texts.size(),
           (unsigned long long)letters);
}
