// A dot product and a regular expression: the first needs right code, the second a libstdc++ that is one and whole.
#include <cstddef>
#include <regex>
#include <string>

extern "C" double smoke_dot(const float *a, const float *b, size_t count) {
    double sum = 0.0;
    for (size_t at = 0; at < count; ++at) sum += static_cast<double>(a[at]) * b[at];
    return sum;
}

extern "C" int smoke_includes(const char *text) {
    static const std::regex include("#\\s*include\\s*<([^>]+)>");
    const std::string all(text);
    return static_cast<int>(std::distance(std::sregex_iterator(all.begin(), all.end(), include),
                                          std::sregex_iterator()));
}
