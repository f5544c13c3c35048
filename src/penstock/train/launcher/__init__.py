"""`penstock train`: the processes of a training job on this machine, from start to end.

::

    penstock train ──owns──▶ supervisor ──owns──▶ worker 0, worker 1, ps 0, ...
       (owner)               (__main__)               (the user's script)

The supervisor is a process in a session of its own. It adopts what its tasks leave behind, so all
that a job ever started hangs below it. When the command dies, the supervisor ends the job; when the
supervisor dies, the command does, and the kernel kills the tasks.

- `job`: what is asked for, as it goes to the supervisor
- `layout`: which tasks that makes, where, with what address and environment
- `cards`: which GPUs each task may use, and how much of them
- `ports`: free ones
- `task`: a process, its output, its end
- `begin`: what that process runs first
- `lines`: output, line by line, under each task's name
- `blame`: which failure was the first real one; `held`: what is not shown before that is known
- `attempt`: all tasks once, from start to the last one's end
- `result`: how that went
- `ending`: what is told at the end; `pace`: how fast it was
- `watch`: one wait for all that can happen
- `peers`, `head`, `member`, `talk`: what the supervisors of several machines tell each other
- `owner`: the command's side

Neither TensorFlow nor numpy is imported here.
"""
