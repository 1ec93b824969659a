"""Plays one game of Atari with a trained agent: python examples/play.py RUN"""

import sys

import numpy as np

import fastdqn

agent = fastdqn.load_agent(sys.argv[1])
env = fastdqn.AtariEnv(agent.config.game, **agent.config.game_options())
stack = np.zeros((agent.config.stack, *agent.frame_shape), agent.dtype)

frame, _ = env.reset(seed=0)
score, ended = 0.0, False
while not ended:
    stack = np.concatenate([stack[1:], frame[None]])  # the last four frames, the newest last
    frame, reward, terminated, truncated, _ = env.step(agent.act(stack, epsilon=0.01))
    score += reward
    ended = terminated or truncated
print(f"{agent.config.game}: {score:g}; the last values were {agent.q_values(stack)}")
