"""The watcher of a replica: one small process a node that keeps the replica whole without a controller. Python 3.6.

Each watcher sees the rank processes of its own node and asks the other watchers of its replica. When a rank or a node
is gone it stops what runs here: the rest of a broken replica only holds devices. When all of the replica are down they
start together, head first, a few times an hour at most; then they stay down and the site's command is called.
"""
