"""The C++ kernels that the stepper calls on raw pointers."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libcpp cimport bool


cdef extern from "fastdqn/preprocess.hpp" namespace "fastdqn" nogil:
    cdef cppclass GreyScreens:
        GreyScreens(size_t size) except +
        bool update(int slot, const uint8_t* numbers) noexcept
        bool learn(const uint8_t* numbers, const uint8_t* greys) noexcept
        const uint8_t* pixels(int slot) noexcept

    cdef cppclass ResizeShape:
        size_t source_height, source_width, height, width

    cdef cppclass AreaResize:
        AreaResize(const ResizeShape&) except +
        void apply_max(const uint8_t* a, const uint8_t* b, uint8_t* out) noexcept


cdef extern from "fastdqn/rng.hpp" namespace "fastdqn" nogil:
    cdef cppclass CounterRng:
        CounterRng(uint64_t seed, uint64_t position) noexcept
        uint64_t seed() noexcept
        uint64_t position() noexcept
        uint32_t next() noexcept


cdef extern from "fastdqn/reward.hpp" namespace "fastdqn" nogil:
    cdef enum class RewardClip:
        kNone
        kSign
        kClip

    float clip_reward(RewardClip rule, double reward) noexcept
