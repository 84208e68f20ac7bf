"""The robot: the control loop, its engines and the safety supervisor."""
