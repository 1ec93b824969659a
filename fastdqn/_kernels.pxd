"""The C++ kernels that the stepper calls on raw pointers."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t


cdef extern from "fastdqn/preprocess.hpp" namespace "fastdqn" nogil:
    cdef cppclass ResizeShape:
        size_t source_height, source_width, height, width

    cdef cppclass AreaResize:
        AreaResize(const ResizeShape&) except +
        void apply(const uint8_t* source, uint8_t* out) noexcept
        void apply_max(const uint8_t* a, const uint8_t* b, uint8_t* out) noexcept


cdef extern from "fastdqn/reward.hpp" namespace "fastdqn" nogil:
    cdef enum class RewardClip:
        kNone
        kSign
        kClip

    float clip_reward(RewardClip rule, double reward) noexcept
